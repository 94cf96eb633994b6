/* tokenizer_unicode.h - characters as tokenizer.json means them: UTF-8 in and out, and the few classes of characters
 * that its components name.
 *
 * Everything here is pure. Functions that walk text expect valid UTF-8 (td_uni_valid checks it once, at the door);
 * td_uni_assembler is for the way out, where bytes come in any order. */
#ifndef TD_TEXT_TOKENIZER_UNICODE_H
#define TD_TEXT_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that a lead byte begins. */
static inline size_t td_uni_length(char lead) {
    unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* The character at s, which holds valid UTF-8; returns its bytes. */
static inline size_t td_uni_next(const char *s, uint32_t *cp) {
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    if (p[0] < 0xE0) {
        *cp = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (p[0] < 0xF0) {
        *cp = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        return 3;
    }
    *cp = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}

/* Where the character begins that ends just before byte `end` > 0. */
static inline size_t td_uni_before(const char *s, size_t end) {
    do
        end--;
    while (end > 0 && ((unsigned char)s[end] & 0xC0) == 0x80);
    return end;
}

/* Writes a character; returns its bytes, 1 to 4. */
size_t td_uni_put(uint32_t cp, char out[4]);

/* Position of the first byte that is not part of a whole character; n when all are. */
size_t td_uni_valid(const char *s, size_t n);

/* Property White_Space. */
bool td_uni_is_space(uint32_t cp);
/* \w of a word boundary: letters, marks, decimal digits, letter numbers, connectors, joiners. */
bool td_uni_is_word(uint32_t cp);
/* General category M. */
bool td_uni_is_mark(uint32_t cp);

/* GPT-2's printable alphabet of the 256 bytes: the character (below 0x144) that stands for a byte, and back; the way
 * back gives -1 for any other character. */
uint32_t td_uni_byte_char(unsigned char byte);
int td_uni_char_byte(uint32_t cp);

/* Puts bytes together to characters. A byte that cannot continue what is pending ends it as one U+FFFD (the "maximal
 * subpart" rule of Unicode chapter 3.9, which web browsers and Rust's lossy conversion follow). */
typedef struct td_uni_assembler {
    char pending[4];
    uint8_t n;      /* bytes pending */
    uint8_t need;   /* bytes of the character that has begun */
    uint8_t lo, hi; /* range of the next byte */
} td_uni_assembler;

/* Takes a byte; writes what has become certain (0 to 7 bytes: a character, or U+FFFD and one) and returns its size. */
size_t td_uni_assemble(td_uni_assembler *a, unsigned char byte, char out[8]);
/* Ends the text: 0, or the 3 bytes of a U+FFFD for what was pending. */
size_t td_uni_assemble_end(td_uni_assembler *a, char out[8]);

#endif
