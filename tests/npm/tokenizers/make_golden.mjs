// make_golden.mjs - what the reference implementation (Hugging Face's tokenizers, in Rust) makes of the texts of
// texts.mjs, written to tests/fixtures/tokenizers/<name>/golden.json for tests/text/test_tokenizer_golden.c, and of
// single components, written to tests/fixtures/tokenizers/components.json for test_tokenizer_components.c.
// Its package is too large to be a test dependency (65 MB), so it is installed by hand where this is run:
//
//   npm install --no-save --prefix /tmp/reference tokenizers@0.23.2
//   node tests/npm/tokenizers/make_golden.mjs /tmp/reference
//
// Of the demonstration model only golden.json is among the fixtures; its tokenizer.json is in models/.
import { createRequire } from 'node:module';
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import * as components from './components.mjs';
import { named, random_texts } from './texts.mjs';

const require = createRequire(process.argv[2] + '/node_modules/');
const { Tokenizer } = require('tokenizers');
const version = require('tokenizers/package.json').version;
const root = fileURLToPath(new URL('../../fixtures/tokenizers/', import.meta.url));
const texts = { ...named, ...random_texts(60, 12345) };

const demo = fileURLToPath(new URL('../../../models/gemma4-demo-4bit/tokenizer.json', import.meta.url));
const files = readdirSync(root).sort().filter((name) => existsSync(`${root}${name}/tokenizer.json`))
  .map((name) => [name, `${root}${name}/tokenizer.json`]);
files.push(['gemma4-demo-4bit', demo]);

for (const [name, file] of files) {
  const tokenizer = Tokenizer.fromFile(file);
  mkdirSync(root + name, { recursive: true });
  const cases = [];
  for (const [title, text] of Object.entries(texts)) {
    const ids = (await tokenizer.encode(text, null, { addSpecialTokens: true })).getIds();
    const inner = (await tokenizer.encode(text, null, { addSpecialTokens: false })).getIds();
    const decoded = await tokenizer.decode(ids, false);
    const skipped = await tokenizer.decode(ids, true);
    cases.push(JSON.stringify({ name: title, text, ids, inner, decoded, skipped }));
  }
  writeFileSync(`${root}${name}/golden.json`, `{"made_by": "tokenizers ${version}", "cases": [\n${cases.join(',\n')}\n]}\n`);
  console.log(name, cases.length);
}

// ---- single components ----

// A tokenizer that is nothing but this component.
const alone = (part) => Tokenizer.fromString(JSON.stringify({
  version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null, pre_tokenizer: null, post_processor: null,
  decoder: null, model: { type: 'BPE', vocab: { a: 0 }, merges: [] }, ...part,
}));

function results(specs, inputs, run) {
  const lines = [];
  for (const spec of specs)
    lines.push(`{"spec": ${JSON.stringify(spec)}, "out": [\n${inputs.map((x) => JSON.stringify(run(spec, x))).join(',\n')}\n]}`);
  return lines.join(',\n');
}

const split = (spec, text) => alone({ pre_tokenizer: spec }).getPreTokenizer().preTokenizeString(text).map(([word]) => word);
const normalize = (spec, text) => alone({ normalizer: spec }).getNormalizer().normalizeString(text);
const decode = (spec, tokens) => alone({ decoder: spec }).getDecoder().decode(tokens);

writeFileSync(`${root}components.json`, `{"made_by": "tokenizers ${version}",
"pretokenizer_texts": ${JSON.stringify(components.pretokenizer_texts)},
"normalizer_texts": ${JSON.stringify(components.normalizer_texts)},
"token_lists": ${JSON.stringify(components.token_lists)},
"pretokenizers": [\n${results(components.pretokenizers, components.pretokenizer_texts, split)}\n],
"normalizers": [\n${results(components.normalizers, components.normalizer_texts, normalize)}\n],
"decoders": [\n${results(components.decoders, components.token_lists, decode)}\n]}\n`);
