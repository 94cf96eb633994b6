// peer.mjs - what llama.cpp (through node-llama-cpp) does on a GGUF file, as one line of JSON.
//
//   node peer.mjs '{"model": "x.gguf", "threads": 2, "context": 150, "prompt": 512, "rows": [1, 2, 4, 8],
//                   "tokens": 64, "repeats": 5, "ids": [...]}'
//
// plain: tokens a second of greedy decoding after `ids`; rows: seconds of one batch of n tokens with logits for all,
// behind `context` tokens, as speculative decoding verifies them; prompt: tokens a second of reading `prompt` tokens.
// Batches go to the binding's own decode call, so that the sampler and the queue of node-llama-cpp are not in the
// figures. Runs where node-llama-cpp is installed (see README.md).
import path from "node:path";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const require = createRequire(path.join(process.cwd(), "x.js"));
const {getLlama} = await import(pathToFileURL(require.resolve("node-llama-cpp")).href);

const ask = JSON.parse(process.argv[2]);
const llama = await getLlama({
    gpu: false, build: "never", maxThreads: ask.threads, logLevel: process.env.PEER_LOG ?? "error"
});
const model = await llama.loadModel({modelPath: path.resolve(ask.model)});
const longest = Math.max(ask.context, ask.prompt, ask.ids.length + ask.tokens);
const drift = ask.repeats * ask.rows.reduce((a, b) => a + b, 0);
const context = await model.createContext({
    contextSize: longest + drift + 64, batchSize: 512, threads: {ideal: ask.threads, min: ask.threads},
    checkpoints: {max: 0}
});
const ctx = context._ctx, id = 0;
const vocabulary = ask.vocabulary ?? 2048;

// Token i of a text that is never the same.
let texts = 0;
const token = (i) => (i * 7919 + texts * 104729 + 13) % vocabulary;

function seconds(start) {
    return Number(process.hrtime.bigint() - start) * 1e-9;
}

// Decodes `tokens` at `at` with logits of the last one, or of all. The time of the decode alone.
async function decode(tokens, at, all) {
    let took = 0, row;
    for (let from = 0; from < tokens.length; from += 512) {
        const part = tokens.slice(from, from + 512), last = from + 512 >= tokens.length;
        const wanted = all ? part.map((_, i) => i) : last ? [part.length - 1] : [];
        ctx.initBatch(part.length);
        const rows = ctx.addToBatch(id, at + from, Uint32Array.from(part), Uint32Array.from(wanted));
        const start = process.hrtime.bigint();
        await ctx.decodeBatch();
        took += seconds(start);
        row = rows[rows.length - 1];
    }
    return {took, row};
}

function clear() {
    ctx.disposeSequence(id);
    texts++;
}

const sampler = new llama._bindings.AddonSampler(model._model);
sampler.applyConfig({temperature: 0});

// Greedy decoding: sampling is in the figure, as it is in the other engine's.
async function plain() {
    clear();
    const out = [];
    let {row} = await decode(ask.ids, 0, false), at = ask.ids.length, start = process.hrtime.bigint();
    let next = await ctx.sampleToken(row, sampler);
    out.push(next);
    start = process.hrtime.bigint();
    while (out.length < ask.tokens) {
        ({row} = await decode([next], at++, false));
        next = await ctx.sampleToken(row, sampler);
        out.push(next);
    }
    return {speed: (ask.tokens - 1) / seconds(start), ids: out};
}

async function prompt() {
    clear();
    const tokens = Array.from({length: ask.prompt}, (_, i) => token(i));
    return ask.prompt / (await decode(tokens, 0, false)).took;
}

// Rows of all counts in turn. A recurrent model cannot go back: there the context grows.
async function rows() {
    clear();
    let at = ask.context;
    const took = ask.rows.map(() => []);
    await decode(Array.from({length: at}, (_, i) => token(i)), 0, false);
    for (let r = 0; r < ask.repeats; r++)
        for (let k = 0; k < ask.rows.length; k++) {
            const which = r % 2 ? ask.rows.length - 1 - k : k, n = ask.rows[which];
            took[which].push((await decode(Array.from({length: n}, (_, i) => token(at + i)), at, true)).took);
            if (!ctx.removeTokenCellsFromSequence(id, at, -1))
                at += n;
        }
    return took;
}

await decode([token(0), token(1)], 0, false); // wakes the threads and the page cache
const result = {plain: await plain(), rows: await rows(), prompt: await prompt(), threads: ctx.getThreads()};
console.log(JSON.stringify(result));
sampler.dispose();
await context.dispose();
await model.dispose();
process.exit(0);
