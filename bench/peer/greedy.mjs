// greedy.mjs - greedy text of a GGUF file from llama.cpp (through node-llama-cpp), given token ids.
//
//   node greedy.mjs model.gguf '{"prompt": [ids], "n": 48}'      prints the ids that follow
//   node greedy.mjs model.gguf fixture-directory                 compares with its vectors (greedy_prompt, greedy_tokens)
//   node greedy.mjs model.gguf '{"prompt": [ids], "top": 8}'     prints the likeliest next ids with their probabilities
//   node greedy.mjs model.gguf text 'Once upon a time'           prints the ids of the text
//
// Runs where node-llama-cpp is installed (see README.md); never part of the build or the tests.
import fs from "node:fs";
import path from "node:path";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const require = createRequire(path.join(process.cwd(), "x.js"));
const {getLlama} = await import(pathToFileURL(require.resolve("node-llama-cpp")).href);

function vectors(dir) {
    const file = fs.readFileSync(path.join(dir, "vectors.safetensors"));
    const size = Number(file.readBigUInt64LE(0)), header = JSON.parse(file.subarray(8, 8 + size));
    const ids = (name) => {
        const {dtype, data_offsets: [from, to]} = header[name], out = [];
        for (let at = 8 + size + from; at < 8 + size + to; at += dtype === "I64" ? 8 : 4)
            out.push(file.readInt32LE(at));
        return out;
    };
    return {prompt: ids("greedy_prompt"), want: ids("greedy_tokens")};
}

async function greedy(model, prompt, n) {
    const context = await model.createContext({contextSize: Math.max(512, prompt.length + n + 8), threads: 1, checkpoints: {max: 0}});
    const sequence = context.getSequence(), out = [];
    if (n > 0)
        for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
            out.push(Number(token));
            if (out.length === n)
                break;
        }
    await context.dispose();
    return out;
}

async function likeliest(model, prompt, top) {
    const context = await model.createContext({contextSize: Math.max(512, prompt.length + 8), threads: 1, checkpoints: {max: 0}});
    const last = [prompt.at(-1), {generateNext: {probabilities: true}}];
    const results = await context.getSequence().controlledEvaluate([...prompt.slice(0, -1), last]);
    const all = [...results.at(-1).next.probabilities].map(([id, p]) => [Number(id), p]);
    await context.dispose();
    return all.sort((a, b) => b[1] - a[1]).slice(0, top);
}

const [file, what, text] = process.argv.slice(2);
const llama = await getLlama({gpu: false, build: "never", logLevel: process.env.PEER_LOG ?? "error"});
const model = await llama.loadModel({modelPath: path.resolve(file)});
let status = 0;
if (what === "text") {
    console.log(JSON.stringify(model.tokenize(text, true).map(Number)));
} else if (what.startsWith("{")) {
    const {prompt, n, top} = JSON.parse(what);
    console.log(JSON.stringify(top ? await likeliest(model, prompt, top) : await greedy(model, prompt, n)));
} else {
    const {prompt, want} = vectors(what), got = await greedy(model, prompt, want.length);
    const first = want.findIndex((t, i) => t !== got[i]);
    console.log(first < 0 ? `same ${want.length} tokens` : `token ${first} is ${got[first]}, expected ${want[first]}`);
    status = first < 0 ? 0 : 1;
}
await model.dispose();
process.exit(status);
