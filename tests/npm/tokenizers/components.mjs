// components.mjs - single components of a tokenizer.json and texts to run them on, for make_golden.mjs.

const split = (pattern, behavior, invert = false) => ({
  type: 'Split', pattern: typeof pattern === 'string' ? { Regex: pattern } : pattern, behavior, invert,
});
const sequence = (...pretokenizers) => ({ type: 'Sequence', pretokenizers });
const bytes = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false };
const behaviors = ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous'];

const prose = [
  "Hello, world! It's 2024-01-02; I'LL pay $1,234.56 (or 100%)...\n\n  Tabs\tand   spaces \r\n\r\n end  ",
  'x^2 + y_1 == z != 0 && a||b // 日本語テキスト、ひらがなカタカナ漢字。今天天气很好！ 한국어 문장입니다',
  'Привет мир, ΑΒΓ αβγ ǅ ʰ १२३ ٤٥ ½ Ⅷ ² नमस्ते सं a\u0301e\u0323\u0301 שָׁלוֹם \u00a0\u3000\u2028x\u180ey\u0085z',
  '👩‍👩‍👧 👍🏽 ❤️ 🇩🇪 camelCaseWORDSHere HTTPServer iPhone15Pro foo_bar-baz __init__ 0x7F 1e-9',
  '----====----', '   ', '\n\n\n', 'aXbXXcXXXd', 'XaX', '', 'a', ' a', 'a ',
  '  lead', 'trail  ', 'e.g., i.e.; "quoted" `code` <tag/> [a](b) {c} #d @e ~f', 'DON\'T can\'t \'ſ x\'re',
];

// Published split expressions: cl100k (Llama 3), o200k, Tekken, DeepSeek V3's three, Kimi's, Qwen 2, GPT-2, StarCoder, BLOOM, Falcon.
const expressions = [
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
  "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s",
  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" +
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" +
    '\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+',
  '[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+' +
    '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+',
  '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+',
  '[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\s+', '[\\p{Hiragana}\\p{Katakana}]+', '\\p{^L}+', '\\P{L}+',
  " ?[^(\\s|[.,!?…。，、।۔،])]+", '[^\\s]+|\\s+', '\\S+', '[\\S\\n]+', '[\\d\\w]+', '\\w+|[^\\w\\s]+', '\\W+', '\\D+', '[\\h]+', '\\H+', '\\b', '\\B', '.', '^.', '.$', '(?m:.+)',
  '[[:alpha:]]+', '[[:space:][:digit:]]', '[a-cx-z]{2,}', 'X{2}', 'X{,2}', 'X{2}+', '[X]{1,2}+', '(?:aX|bX){1,2}+', '\\u0058', '\\x58', '[\\x{41}-\\x{5A}]+', '\\X', 'a|', 'X*',
  '(?<=X)[a-z]', '(?<!X)[a-z]', '(?>a|ab)', '(a)(?!X)', '\\\\|\\/|\\-|\\_', '[\\-x]', '[x\\-]', '[\\s-]', '[]a]|x', '\\p{Lu}\\p{Ll}+', '(?i)x', '\\Ax|x\\z',
];

export const pretokenizers = [
  ...expressions.map((e) => split(e, 'Isolated')),
  ...behaviors.flatMap((b) => [split('X', b), split({ String: 'X' }, b), split('X', b, true), split('\\s+', b), split('X*', b), split({ String: ' ' }, b, true)]),
  bytes, { ...bytes, use_regex: true }, { ...bytes, add_prefix_space: true }, { ...bytes, add_prefix_space: true, use_regex: true },
  { type: 'Whitespace' }, { type: 'WhitespaceSplit' }, { type: 'Digits', individual_digits: true }, { type: 'Digits', individual_digits: false },
  ...behaviors.map((behavior) => ({ type: 'Punctuation', behavior })),
  ...['first', 'always', 'never'].flatMap((prepend_scheme) => [true, false].map((s) => ({ type: 'Metaspace', replacement: '▁', prepend_scheme, split: s }))),
  { type: 'Metaspace', replacement: '_', add_prefix_space: true },
  sequence(split('\\p{N}{1,3}', 'Isolated'), split('[一-龥぀-ゟ゠-ヿ]+', 'Isolated'), split(expressions[6], 'Isolated'), bytes),
  sequence({ type: 'Digits', individual_digits: true }, { type: 'Punctuation', behavior: 'Isolated' }, { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: true }),
  sequence({ type: 'WhitespaceSplit' }, { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: false }),
  sequence({ type: 'WhitespaceSplit' }, { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false }), sequence(),
];
export const pretokenizer_texts = prose;

const replace = (pattern, content) => ({ type: 'Replace', pattern: typeof pattern === 'string' ? { Regex: pattern } : pattern, content });

export const normalizers = [
  { type: 'NFC' }, { type: 'NFD' }, { type: 'NFKC' }, { type: 'NFKD' }, { type: 'Lowercase' }, { type: 'StripAccents' },
  { type: 'Strip', strip_left: true, strip_right: true }, { type: 'Strip', strip_left: true, strip_right: false },
  { type: 'Strip', strip_left: false, strip_right: true }, { type: 'Prepend', prepend: '▁' },
  replace({ String: ' ' }, '▁'), replace({ String: 'aa' }, 'b'), replace(' {2,}', ' '), replace('^\\s+', ''), replace('\\d', '#$1'), replace('x*', '-'),
  { type: 'Sequence', normalizers: [{ type: 'NFD' }, { type: 'StripAccents' }, { type: 'Lowercase' }, { type: 'Strip', strip_left: true, strip_right: true }] },
  { type: 'Sequence', normalizers: [] },
];
export const normalizer_texts = [
  ...prose, 'Cre\u0300me bru\u0302le\u0301e Crème', 'a\u0301\u0323\u0334\u0345b', '\u0301', '\u0041\u030a\u0323 \u1e69 \u0073\u0323\u0307', '\u212b\u2126\u00c5',
  '\uac00 \u1100\u1161 \u1100\u1161\u11a8 \uac00\u11a8 \u1161', '\ufb01\ufdfa\u3392\uff21①½', '\u0958\u09dc\u2adc', 'İIıi ǅ ΣΑΣ Ａ', 'aaa aaaa', '\u00a0 x \u3000', '\u1e9b\u0323', '\u0f73\u0f71\u0f72',
  '\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308\u0309\u030a\u030b\u0323\u0324\u0325\u0326\u0327\u0328\u0334\u0335x', '\u{1d15e}\u{2f800}\u{1f132}', '\ud7a3\u11c3', 'a\u0000\u0301b',
];

export const decoders = [
  { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true }, { type: 'Fuse' }, { type: 'ByteFallback' },
  { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true }, { type: 'Metaspace', replacement: '▁', prepend_scheme: 'never', split: true },
  { type: 'Strip', content: ' ', start: 1, stop: 0 }, { type: 'Strip', content: 'a', start: 2, stop: 0 }, replace({ String: '▁' }, ' '), replace({ String: 'ab' }, 'X'),
  replace('[ab]+', '<>'),
  { type: 'Sequence', decoders: [replace({ String: '▁' }, ' '), { type: 'ByteFallback' }, { type: 'Fuse' }] },
  { type: 'Sequence', decoders: [replace({ String: '▁' }, ' '), { type: 'ByteFallback' }, { type: 'Fuse' }, { type: 'Strip', content: ' ', start: 1, stop: 0 }] },
  { type: 'Sequence', decoders: [{ type: 'ByteFallback' }, { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true }] },
  { type: 'Sequence', decoders: [{ type: 'ByteFallback' }, { type: 'Fuse' }, replace({ String: 'ab' }, 'X'), { type: 'Strip', content: 'X', start: 1, stop: 0 }] },
  { type: 'Sequence', decoders: [{ type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true }, replace({ String: 'ab' }, 'b')] },
  { type: 'Sequence', decoders: [] },
];
export const token_lists = [
  ['▁Hello', ',', '▁', '▁wor', 'ld', '▁▁x'], ['▁▁', '▁a▁b'], ['<0xE6>', '<0x97>', '<0xA5>', '日', '<0x41>'], ['a', '<0xe6>', '<0x97>', '<0xA5>', '▁'],
  ['a', 'b', 'ab', 'aab', 'b', 'aaa', ' a ', '  b'], ['ĠHello', 'Ċ', 'Ã', '©', 'Ġ', 'ðŁĺ', 'Ģ'], ['Ã', 'x', '日', 'Ã', '©'], ['a'], [' '], ['  x  '], ['a', 'a', 'b', 'a', 'a'],
  ['<0xE2>', '<0x96>', '<0x81>', 'a', '<0x61>', 'b', '<0x62>', 'a'], ['<0x4>', '<0xZZ>', '<0x41', '<0x41>'], ['aaaab', 'abab', 'ba'], ['b', '<0xE6>', '<0x97>', '<0x41>', 'a'],
];
