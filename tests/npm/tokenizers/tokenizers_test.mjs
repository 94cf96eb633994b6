// tokenizers_test.mjs - Tandem's tokenizer beside @huggingface/tokenizers, Hugging Face's own JavaScript implementation.
//
//   node tokenizers_test.mjs DRIVER ROOT
//
// DRIVER is tokenizers_driver.c, built; ROOT the repository's: the tokenizers of tests/fixtures/tokenizers and that of the
// demonstration model are compared. Exits 77 (skipped) when the package is not installed. Ids and decoded texts must be equal, but for the cases below, where the JavaScript package
// departs from the reference implementation (in Rust) that Tandem follows; tests/text/test_tokenizer_golden.c holds
// those same cases against the reference itself.
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { basename, join } from 'node:path';
import { named, random_texts } from './texts.mjs';

let Tokenizer;
try {
  ({ Tokenizer } = await import('@huggingface/tokenizers'));
} catch {
  console.log('SKIPPED: @huggingface/tokenizers is not installed (run npm ci in tests/npm)');
  process.exit(77);
}

// Each: what the package does differently, where, and for which texts.
const exclusions = [
  { why: 'its Metaspace never splits', only: ['metaspace-split-style'], texts: /[ \u2581]{2}/ },
  { why: 'its Metaspace decoder takes one mark off the first token, the reference all of them',
    only: ['metaspace-style', 'metaspace-split-style'], kind: 'decode', texts: /^[ \u2581]{2}/ },
  { why: 'its ByteFallback decoder drops a byte order mark', kind: 'decode', texts: /\ufeff/,
    only: ['gemma-style', 'sentencepiece-style', 'gemma4-demo-4bit'] },
  { why: 'its Strip takes a byte order mark for a space', only: ['components-style'], texts: /^\s*\ufeff/ },
  { why: 'its Digits knows decimal digits only', only: ['components-style'], kind: 'encode', texts: /(?!\p{Nd})\p{N}/u },
  { why: 'its Lowercase looks at the end of a word (final sigma)', only: ['components-style'], kind: 'encode', texts: /\u03a3/ },
  { why: 'it ignores single_word of added tokens', only: ['components-style'], kind: 'encode',
    texts: /[\p{L}\p{M}\p{Nd}\p{Pc}]yesterday|yesterday[\p{L}\p{M}\p{Nd}\p{Pc}]/u },
];
const texts = { ...named, ...random_texts(400, 987654321) };

function excluded(tokenizer, kind, text) {
  return exclusions.find((e) => e.only.includes(tokenizer) && (!e.kind || e.kind === kind) && e.texts.test(text));
}

function run_driver(driver, directory, requests) {
  const input = requests.map((r) => JSON.stringify(r)).join('\n') + '\n';
  const output = execFileSync(driver, [join(directory, 'tokenizer.json')], { input, maxBuffer: 1 << 30 }).toString();
  return output.trimEnd().split('\n').map((line) => JSON.parse(line));
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

function compare(driver, directory) {
  const name = basename(directory);
  const json = JSON.parse(readFileSync(join(directory, 'tokenizer.json'), 'utf8'));
  const reference = new Tokenizer(json, {});
  const cases = Object.entries(texts).map(([title, text]) => ({ title, text, ids: reference.encode(text, { add_special_tokens: false }).ids }));
  const requests = cases.flatMap(({ text, ids }) => [{ text, parse_special: true }, { ids }, { ids, skip_special: true }]);
  const answers = run_driver(driver, directory, requests);
  const counts = { equal: 0, excluded: 0, different: 0 };
  cases.forEach(({ title, text, ids }, i) => {
    const decode = (skip) => ids.length === 0 ? '' :
      reference.decode(ids, { skip_special_tokens: skip, clean_up_tokenization_spaces: false });
    const pairs = [['encode', ids, answers[3 * i].ids], ['decode', decode(false), answers[3 * i + 1].text],
      ['decode', decode(true), answers[3 * i + 2].text]];
    for (const [kind, want, got] of pairs) {
      const outcome = same(want, got) ? 'equal' : excluded(name, kind, text) ? 'excluded' : 'different';
      counts[outcome]++;
      if (outcome === 'different')
        console.log(`DIFFERENT ${name} ${kind} ${title}: ${JSON.stringify(text).slice(0, 200)}\n  theirs ${JSON.stringify(want).slice(0, 300)}\n` +
          `  ours   ${JSON.stringify(got ?? answers.slice(3 * i, 3 * i + 3)).slice(0, 300)}`);
    }
  });
  console.log(`${name}: ${counts.equal} equal, ${counts.excluded} excluded, ${counts.different} different`);
  return counts.different;
}

const [driver, root] = process.argv.slice(2);
const fixtures = join(root, 'tests/fixtures/tokenizers');
const directories = [...readdirSync(fixtures).sort().map((d) => join(fixtures, d)), join(root, 'models/gemma4-demo-4bit')]
  .filter((d) => existsSync(join(d, 'tokenizer.json')));
const different = directories.map((d) => compare(driver, d)).reduce((a, b) => a + b, 0);
process.exit(different === 0 && directories.length > 0 ? 0 : 1);
