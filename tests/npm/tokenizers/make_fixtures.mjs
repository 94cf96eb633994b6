// make_fixtures.mjs - small tokenizers in the forms that published checkpoints have, written to
// tests/fixtures/tokenizers/<name>/tokenizer.json. The vocabularies are trained here, on the texts below, by plain
// byte pair encoding; nothing is random, so running it again writes the same bytes.
//
//   node tests/npm/tokenizers/make_fixtures.mjs
import { mkdirSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const out = fileURLToPath(new URL('../../fixtures/tokenizers/', import.meta.url));

const corpus = `
The old clock in the hall had stopped at ten past four, and nobody could say when it happened. The children thought that the
house was listening. There was a garden behind the house, and in the garden there was a well; the water in the well was dark
and cold. "Do not go near the water," said the old woman. "Why not?" asked the boy. "Because it is deep," she answered, and
she was not smiling. That evening the wind came over the hills and the windows were shaking. They were reading by the fire.
It's late, isn't it? I'm not sure; we'll see what they've done. You're right, he'd better wait. In 1984 there were 12 of them,
in 2024 only 3. The price was 1,250.75 then and 99 now. Nothing is ever lost, nothing is ever really gone, thinking and singing.
Les enfants étaient déjà partis; la forêt était froide, le château fermé. Où est-il allé? Ça dépend, naturellement.
Die Straße führt über die Brücke nach Süden; dort wohnen die Müllers. Wäre es möglich, früher zu kommen?
El niño pequeño comió mañana por la mañana; ¿dónde está el baño? Съешь ещё этих мягких булок, да выпей чаю. Он сказал, что придёт.
今天天气很好，我们去公园散步吧。我不知道他是谁。日本語のテキストです。これはペンです。안녕하세요 여러분 감사합니다.
السلام عليكم يا صديقي، كيف حالك اليوم؟ नमस्ते दुनिया, यह एक परीक्षण है। สวัสดีชาวโลก 😀 👍 ❤️
def add(a, b):
    """Return the sum."""
    return a + b

for (int i = 0; i < n; i++) {
    if (x[i] != 0) {
        printf("%d\\n", x[i]);
    }
}
const value = list.map((item) => item.name).filter(Boolean);
<p class="note">Hello &amp; welcome</p> https://example.org/path?query=1 user@example.org {"key": [1, 2, 3], "other": null}
`;

// ---- training ----

function count_pairs(words) {
  const counts = new Map();
  for (const { parts, count } of words)
    for (let i = 0; i + 1 < parts.length; i++) {
      const key = parts[i] + '\u0000' + parts[i + 1];
      counts.set(key, (counts.get(key) ?? 0) + count);
    }
  return counts;
}

// The most frequent pair; of equals, the first in code unit order.
function best_pair(counts, at_least) {
  let best = null;
  for (const [key, count] of counts)
    if (count >= at_least && (!best || count > best.count || (count === best.count && key < best.key))) best = { key, count };
  return best ? best.key.split('\u0000') : null;
}

function join_pair(parts, [a, b]) {
  const joined = [];
  for (let i = 0; i < parts.length; i++)
    if (parts[i] === a && parts[i + 1] === b) joined.push(a + b), i++;
    else joined.push(parts[i]);
  return joined;
}

function train(pieces, n_merges) {
  const counts = new Map();
  for (const piece of pieces) counts.set(piece, (counts.get(piece) ?? 0) + 1);
  const words = [...counts].map(([word, count]) => ({ parts: [...word], count }));
  const merges = [];
  while (merges.length < n_merges) {
    const pair = best_pair(count_pairs(words), 2);
    if (!pair) break;
    merges.push(pair);
    for (const word of words) word.parts = join_pair(word.parts, pair);
  }
  return merges;
}

// ---- alphabets and vocabularies ----

function byte_alphabet() {
  const own = (b) => (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  let next = 0x100;
  return Array.from({ length: 256 }, (_, b) => String.fromCodePoint(own(b) ? b : next++));
}
const alphabet = byte_alphabet();
const to_bytes = (s) => [...new TextEncoder().encode(s)].map((b) => alphabet[b]).join('');
const byte_names = Array.from({ length: 256 }, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`);

function vocabulary(first, merges) {
  const vocab = {};
  let n = 0;
  for (const word of [...first, ...merges.map(([a, b]) => a + b)]) if (!(word in vocab)) vocab[word] = n++;
  return vocab;
}

const added = (id, content, more = {}) => ({
  id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true, ...more,
});

const bpe = (vocab, merges, more = {}) => ({
  type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false,
  byte_fallback: false, ignore_merges: false, ...more, vocab, merges,
});

const tokenizer = (parts) => ({
  version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null, pre_tokenizer: null, post_processor: null,
  decoder: null, ...parts,
});

const special = (token) => ({ SpecialToken: { id: token, type_id: 0 } });

// One token before the text, and perhaps one after it.
const template = (token, id, last, last_id) => ({
  type: 'TemplateProcessing',
  single: [special(token), { Sequence: { id: 'A', type_id: 0 } }, ...(last ? [special(last)] : [])],
  pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
  special_tokens: {
    [token]: { id: token, ids: [id], tokens: [token] },
    ...(last ? { [last]: { id: last, ids: [last_id], tokens: [last] } } : {}),
  },
});

function write(name, json, config) {
  mkdirSync(out + name, { recursive: true });
  writeFileSync(`${out}${name}/tokenizer.json`, JSON.stringify(json) + '\n');
  writeFileSync(`${out}${name}/tokenizer_config.json`, JSON.stringify(config, null, 2) + '\n');
}

// ---- the forms ----

// Gemma: spaces to marks, no splitting, bytes for what is unknown, runs of spaces and newlines in the vocabulary.
function gemma() {
  const specials = ['<pad>', '<eos>', '<bos>', '<unk>', '<mask>', '<|turn>', '<turn|>'];
  const lines = corpus.replaceAll(' ', '\u2581').split(/(?<=[.;])/);
  const merges = train(lines, 420);
  const chars = [...new Set(corpus.replaceAll(' ', '\u2581').replace(/[^\u0000-\u04ff\u2581]/gu, ''))].sort();
  const kept = merges.filter(([a, b]) => [...(a + b)].every((c) => chars.includes(c)));
  for (const run of ['\n', '\u2581'])
    for (let n = 2; n <= 8; n++) kept.push([run.repeat(n - 1), run]);
  const unique = [...new Map(kept.map((m) => [m.join('\u0000'), m])).values()];
  const vocab = vocabulary([...specials, ...byte_names, ...chars], unique);
  write('gemma-style', tokenizer({
    added_tokens: [...specials.map((s) => added(vocab[s], s)), added(Object.keys(vocab).length, '<unused0>', { special: false })],
    normalizer: { type: 'Replace', pattern: { String: ' ' }, content: '\u2581' },
    pre_tokenizer: { type: 'Split', pattern: { String: ' ' }, behavior: 'MergedWithPrevious', invert: false },
    post_processor: template('<bos>', vocab['<bos>']),
    decoder: { type: 'Sequence', decoders: [
      { type: 'Replace', pattern: { String: '\u2581' }, content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' }] },
    model: bpe(vocab, unique, { unk_token: '<unk>', fuse_unk: true, byte_fallback: true }),
  }), { bos_token: '<bos>', eos_token: { content: '<eos>' }, pad_token: '<pad>', add_bos_token: true });
}

const qwen_expression = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" +
  '\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';
const llama_expression = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" +
  '\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

// What JavaScript of today takes for the same expression; only for training.
const for_training = (e) => new RegExp(e.replace('(?i:', '(?:'), 'gu');

const split_bytes = (expression) => ({ type: 'Sequence', pretokenizers: [
  { type: 'Split', pattern: { Regex: expression }, behavior: 'Isolated', invert: false },
  { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false }] });

const byte_level = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false };

// Qwen 3.5: NFC, letters with their marks, one digit a word, merges in the older form, no BOS.
function qwen() {
  const merges = train(corpus.normalize('NFC').match(for_training(qwen_expression)).map(to_bytes), 500);
  const vocab = vocabulary(alphabet.slice().sort(), merges);
  let id = Object.keys(vocab).length;
  const plain = { special: false };
  write('qwen-style', tokenizer({
    added_tokens: [added(id++, '<|endoftext|>'), added(id++, '<|im_start|>'), added(id++, '<|im_end|>'), added(id++, '<think>', plain),
      added(id++, '</think>', plain), added(id++, '<tool_call>', plain), added(id++, '</tool_call>', plain)],
    normalizer: { type: 'NFC' },
    pre_tokenizer: split_bytes(qwen_expression),
    post_processor: byte_level,
    decoder: byte_level,
    model: bpe(vocab, merges.map((m) => m.join(' ')), { continuing_subword_prefix: '', end_of_word_suffix: '' }),
  }), { bos_token: null, eos_token: '<|im_end|>', pad_token: '<|endoftext|>', add_bos_token: false });
}

// Llama 3: whole words that are tokens are taken as they are, and some of those no merge makes.
function llama() {
  const merges = train(corpus.match(for_training(llama_expression)).map(to_bytes), 500);
  const words = [' yesterday', 'yesterday', ' together', '</', '...', ' "'].map(to_bytes);
  const vocab = vocabulary([...alphabet.slice().sort(), ...words], merges);
  let id = Object.keys(vocab).length;
  const bos = id;
  write('llama3-style', tokenizer({
    added_tokens: ['<|begin_of_text|>', '<|end_of_text|>', '<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>'].map((s) => added(id++, s)),
    pre_tokenizer: split_bytes(llama_expression),
    post_processor: { type: 'Sequence', processors: [byte_level, template('<|begin_of_text|>', bos)] },
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: bpe(vocab, merges, { ignore_merges: true }),
  }), { bos_token: '<|begin_of_text|>', eos_token: '<|eot_id|>' });
}

function sentencepiece_parts() {
  const specials = ['<unk>', '<s>', '</s>'];
  const words = corpus.replaceAll(' ', '\u2581').match(/\u2581*[^\u2581]+/gu);
  const chars = [...new Set(corpus.replaceAll(' ', '\u2581').replace(/[^\u0020-\u04ff\u2581\u3040-\u30ff]/gu, ''))].sort();
  const merges = train(words, 400).filter(([a, b]) => [...(a + b)].every((c) => chars.includes(c)));
  return { specials, merges, vocab: vocabulary([...specials, ...byte_names, ...chars], merges) };
}

// Llama 2 and Phi 3: a mark before the text by the normaliser, stripped again by the decoder.
function sentencepiece() {
  const { specials, merges, vocab } = sentencepiece_parts();
  write('sentencepiece-style', tokenizer({
    added_tokens: specials.map((s) => added(vocab[s], s, { normalized: s === '</s>' })),
    normalizer: { type: 'Sequence', normalizers: [
      { type: 'Prepend', prepend: '\u2581' }, { type: 'Replace', pattern: { String: ' ' }, content: '\u2581' }] },
    post_processor: template('<s>', vocab['<s>']),
    decoder: { type: 'Sequence', decoders: [{ type: 'Replace', pattern: { String: '\u2581' }, content: ' ' }, { type: 'ByteFallback' },
      { type: 'Fuse' }, { type: 'Strip', content: ' ', start: 1, stop: 0 }] },
    model: bpe(vocab, merges, { unk_token: '<unk>', fuse_unk: true, byte_fallback: true }),
  }), { bos_token: '<s>', eos_token: '</s>', unk_token: '<unk>', add_bos_token: true, add_eos_token: false });
}

// Mistral and T5: the mark is put by the pre-tokeniser; here unknown characters are unknown.
function metaspace(name, prepend_scheme, split) {
  const { specials, merges, vocab } = sentencepiece_parts();
  for (const byte of byte_names) delete vocab[byte];
  const packed = Object.fromEntries(Object.keys(vocab).map((w, i) => [w, i]));
  const space = { type: 'Metaspace', replacement: '\u2581', prepend_scheme, split };
  write(name, tokenizer({
    added_tokens: specials.map((s) => added(packed[s], s)),
    pre_tokenizer: space,
    decoder: space,
    model: bpe(packed, merges, { unk_token: '<unk>', fuse_unk: true }),
  }), { bos_token: '<s>', eos_token: '</s>' });
}

// Everything else that a file may ask for, in one: GPT-2's own splitting behind digits and punctuation, lower case, a
// normaliser that strips, and added tokens with every flag.
function components() {
  const expression = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;
  const merges = train(corpus.toLowerCase().match(expression).map(to_bytes), 300);
  const vocab = vocabulary(['<unk>', ...alphabet.slice().sort()], merges);
  let id = Object.keys(vocab).length;
  const plain = { special: false, normalized: true };
  write('components-style', tokenizer({
    added_tokens: [
      added(vocab['<unk>'], '<unk>'), added(id++, '<mask>', { lstrip: true, rstrip: true }), added(id++, '<bos>'), added(id++, '<eos>', { rstrip: true }),
      added(id++, 'yesterday', { ...plain, single_word: true }), added(id++, 'NORM', plain), added(id++, '[NORM]', plain),
      added(id++, '<think>', { ...plain, normalized: false, lstrip: true })],
    normalizer: { type: 'Sequence', normalizers: [{ type: 'NFKD' }, { type: 'StripAccents' }, { type: 'Lowercase' },
      { type: 'Replace', pattern: { Regex: '\\s{2,}' }, content: ' ' }, { type: 'Strip', strip_left: true, strip_right: false }] },
    pre_tokenizer: { type: 'Sequence', pretokenizers: [{ type: 'Digits', individual_digits: true },
      { type: 'Punctuation', behavior: 'Contiguous' }, { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true }] },
    post_processor: template('<bos>', id - 6, '<eos>', id - 5),
    decoder: { type: 'Sequence', decoders: [{ type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
      { type: 'Strip', content: ' ', start: 1, stop: 0 }] },
    model: bpe(vocab, merges.map((m) => m.join(' ')), { unk_token: '<unk>' }),
  }), { bos_token: '<bos>', eos_token: '<eos>' });
}

for (const make of [gemma, qwen, llama, sentencepiece, components]) make();
metaspace('metaspace-style', 'first', false);
metaspace('metaspace-split-style', 'always', true);
