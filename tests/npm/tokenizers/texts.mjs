// texts.mjs - texts that tokenisers get wrong. Each has a name, so that a case can be excluded by name where an
// implementation is known to differ. The random ones are put together from fragments by a fixed generator.

export const named = {
  empty: '',
  space: ' ',
  two_spaces: '  ',
  hello: 'Hello, world!',
  leading_space: ' Hello',
  leading_spaces: '   Hello',
  trailing_space: 'Hello ',
  trailing_spaces: 'Hello   ',
  inner_runs: 'a  b   c    d',
  newline: '\n',
  newlines: 'one\n\ntwo\n\n\nthree\n\n\n\n',
  crlf: 'one\r\ntwo\r\n\r\nthree\r',
  tabs: '\tif x:\n\t\treturn\t1\n',
  space_newline: '  \n  \n x \n',
  only_white: ' \t\n\u00a0\u2003\u3000\n ',
  odd_spaces: 'a\u00a0b\u1680c\u2003d\u2028e\u205ff\u3000g',
  next_line: 'a\u0085b',
  zero_width: 'a\u200bb\u200cc\u200dd\ufeffe\u2060f',
  mongolian_separator: 'a\u180eb \u180e c',
  nul: 'a\u0000b',
  controls: 'a\u0001\u0002\u001fb\u007fc\u009fd',
  contractions: "I'm you're we've he'll she'd it's don't I'M YOU'RE IT'S ''s 'sx",
  quotes: '"quoted" \u2018single\u2019 \u201cdouble\u201d it\u2019s',
  long_s_contraction: "it'\u017f and '\u017ftop",
  digits: '0 1 12 123 1234 12345 3.14159 1,000,000 2^10',
  other_digits: '\u0661\u0662\u0663 \u0967\u0968 \u00bd \u2163 \u2460 \u00b2\u00b3 \u{1d7d8}',
  snake: 'snake_case camelCase PascalCase SCREAMING_CASE kebab-case',
  code: 'def f(x):\n    """Doc."""\n    return {k: v ** 2 for k, v in x.items() if v != 0}\n',
  c_code: '#include <stdio.h>\nint main(void) { printf("%d\\n", 0x7F & ~1); return 0; }\n',
  html: '<p class="a">x &amp; y</p><br/><!-- <bos> -->',
  json: '{"a": [1, 2.5e-3, null], "b": "\\u00e9\\n"}',
  url: 'https://example.org/a/b?c=d&e=%20f#g',
  punctuation: '!!! ??? ... ,,, ;;; --- ___ +++ === ~~~ ``` ((( [[[ {{{ <<< >>> ||| &&& *** ^^^ %%% $$$ @@@ ###',
  math: '\u2211\u222b\u221a\u2260\u2264 x\u00b2+y\u00b2=z\u00b2 \u{1d54f}',
  accents: 'Crème brûlée à la façon de Zoë, naïve café',
  decomposed: 'Cre\u0300me bru\u0302le\u0301e cafe\u0301',
  marks_out_of_order: 'a\u0301\u0323 a\u0323\u0301 q\u0307\u0323',
  many_marks: 'Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e\u0320\u034d',
  lone_mark: '\u0301abc \u0301',
  compat: '\ufb01 \u2126 \u212b \uff21\uff22 \u3392 \u00bc \u2460 \ufdfa',
  hangul: '안녕하세요 \u1112\u1161\u11ab\u1100\u1173\u11af 한글',
  chinese: '今天天气很好，我们去公园散步吧。三十年河东',
  japanese: '日本語のテキスト、ひらがなとカタカナと漢字。ﾊﾝｶｸ が\u3099 か\u3099',
  rare_han: '\u{20000}\u{2a6d6}\u{2f800}',
  arabic: 'السَّلامُ عَلَيْكُم يا صديقي، كيف حالك؟',
  hebrew: 'שָׁלוֹם עוֹלָם',
  hindi: 'नमस्ते दुनिया, क्षत्रिय कि की कु',
  thai: 'สวัสดีชาวโลก น้ำ',
  tamil: 'வணக்கம் உலகம் கொ',
  russian: 'Съешь ещё этих мягких французских булок, да выпей чаю',
  greek: 'Ξεσκεπάζω την ψυχοφθόρα βδελυγμία ΣΊΣΥΦΟΣ',
  turkish: 'İstanbul ıssız ISPARTA',
  vietnamese: 'Tiếng Việt có dấu Tie\u0302\u0301ng Vie\u0323\u0302t',
  emoji: '😀 😀😀 👍🏽 ❤️ ❤',
  zwj: '👩‍👩‍👧‍👦 🏳️‍🌈 👨🏿‍🚀',
  flags: '🇩🇪🇫🇷 🇺',
  keycap: '1️⃣ #️⃣',
  private: 'a\ue000b\u{f0000}c\uffff\u{10ffff}',
  replacement: 'a\ufffdb',
  bom: '\ufeffabc',
  mark_in_text: 'a\u2581b \u2581 \u2581\u2581c',
  byte_names: '<0x41> <0x0A><0xFF> <0xZZ> <0x4>',
  byte_alphabet: 'Ġthe Ċ Ã© ĠĠ',
  special_like: '<bos> <eos> <|im_start|>user\nhi<|im_end|>\n<|begin_of_text|>x<s>y</s>',
  special_cut: '<bo <|im_star <|im_start <|im_start|',
  special_glued: 'a<bos>b<eos><eos>c<|im_end|>d<|eot_id|>e',
  special_nested: '<<bos>> <|<|im_end|>|> <|im_start<|im_end|>|>',
  special_spaced: 'a  <mask>  b <mask>c \n <mask> \n d<mask>',
  special_only: '<bos>',
  added_words: 'yesterday Yesterday yesterdays Xyesterday x_yesterday yesterday. \u00e9yesterday YESTERDAY',
  added_plain: 'a<think>b</think>c <tool_call>{}</tool_call> <think><think>',
  added_lower: 'NORM norm Norm nOrM denorm [NORM]',
  added_spaces: 'x        y\n\n\n\n\n\nz',
  long_word: 'x'.repeat(300),
  long_word_mixed: 'abcdefghij'.repeat(40),
  long_digits: '1234567890'.repeat(20),
  long_spaces: ' '.repeat(257) + 'x',
  long_newlines: '\n'.repeat(130),
  long_dashes: '-'.repeat(200),
  repeated: 'the the the the the the the the',
  numbers_words: 'a1b2c3 4th 5G x86_64 2024-01-02T03:04:05Z',
  upper: 'THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG',
  prose: 'The old clock in the hall had stopped at ten past four, and nobody could say when. ' +
    '"It was always so," she said, turning the page; outside, the rain went on and on.',
};

const fragments = [
  ' ', '  ', '\n', '\n\n', '\t', '\r\n', 'a', 'the', ' the', 'The', 'ing', 'tion', ' and', "'s", "'ll", "'", '"', '.', ',', '!',
  '?', '-', '_', '(', ')', '{', '}', '0', '7', '42', '2024', '3.14', 'é', 'e\u0301', '\u0301', 'ß', 'ñ', 'Ω', 'ж', 'привет',
  'مرحبا', 'שלום', 'नमस्ते', 'สวัสดี', '日', '本語', 'ひら', 'カナ', '한글', '\u1112\u1161\u11ab', '😀', '👍🏽', '\u200d', '\ufe0f',
  '🇩🇪', '\u00a0', '\u2003', '\u3000', '\u200b', '\u2581', 'Ġ', '<bos>', '<eos>', '<|im_start|>', '<|im_end|>', '<think>', '</think>',
  '<mask>', 'yesterday', 'NORM', '<0x0A>', '<', '>', '|', 'http://', '\\n', '/*', '*/', '==', '!=', '+=', '\u{1f469}', '\u{20000}', '\u0000',
];

// A linear congruential generator (Numerical Recipes' constants): the same texts on every machine.
function generator(seed) {
  let state = seed >>> 0;
  return (n) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 4294967296) * n);
  };
}

export function random_texts(count, seed) {
  const next = generator(seed);
  const texts = {};
  for (let i = 0; i < count; i++) {
    let text = '';
    for (let n = 1 + next(14); n > 0; n--) text += fragments[next(fragments.length)];
    texts[`random_${i}`] = text;
  }
  return texts;
}
