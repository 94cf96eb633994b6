/* tokenizer_unicode.c - UTF-8 and character classes. General categories come from utf8proc; the two classes that a
 * category does not decide (white space, other alphabetic) are short lists of ranges of the Unicode database. */
#include "text/tokenizer_unicode.h"

#include <string.h>
#include <utf8proc.h>

size_t td_uni_put(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

/* ---- bytes to characters ---- */

/* A lead byte: how long its character is (0: it leads none) and which second bytes keep it well formed. */
static size_t lead(unsigned char c, uint8_t *lo, uint8_t *hi) {
    *lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    *hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    return c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
}

size_t td_uni_valid(const char *s, size_t n) {
    const unsigned char *p = (const unsigned char *)s;
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (n - i >= 8 && (memcpy(&eight, p + i, 8), !(eight & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        uint8_t lo, hi;
        size_t k = lead(p[i], &lo, &hi);
        if (k == 0 || k > n - i || (k > 1 && (p[i + 1] < lo || p[i + 1] > hi)))
            return i;
        for (size_t j = 2; j < k; j++)
            if ((p[i + j] & 0xC0) != 0x80)
                return i;
        i += k;
    }
    return n;
}

static size_t put_replacement(char *out) {
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

size_t td_uni_assemble_end(td_uni_assembler *a, char out[8]) {
    size_t n = a->n > 0 ? put_replacement(out) : 0;
    a->n = 0;
    return n;
}

size_t td_uni_assemble(td_uni_assembler *a, unsigned char byte, char out[8]) {
    size_t n = 0;
    if (a->n > 0 && (byte < a->lo || byte > a->hi))
        n = td_uni_assemble_end(a, out);
    if (a->n == 0) {
        a->need = (uint8_t)lead(byte, &a->lo, &a->hi);
        if (a->need == 0)
            return n + put_replacement(out + n);
    } else {
        a->lo = 0x80;
        a->hi = 0xBF;
    }
    a->pending[a->n++] = (char)byte;
    if (a->n < a->need)
        return n;
    memcpy(out + n, a->pending, a->n);
    n += a->n;
    a->n = 0;
    return n;
}

/* ---- classes ---- */

bool td_uni_is_space(uint32_t cp) {
    return (cp >= 0x09 && cp <= 0x0D) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

bool td_uni_is_mark(uint32_t cp) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

/* Symbols with the property Other_Alphabetic; the rest of that property are marks. */
static bool is_alphabetic_symbol(uint32_t cp) {
    return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
           (cp >= 0x1F170 && cp <= 0x1F189);
}

bool td_uni_is_word(uint32_t cp) {
    if (cp < 0x80)
        return (cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || (cp >= 'a' && cp <= 'z') || cp == '_';
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return cp == 0x200C || cp == 0x200D || is_alphabetic_symbol(cp);
    }
}

/* ---- the byte alphabet ---- */

/* Bytes that stand for themselves: the printable ones of Latin-1, without the soft hyphen. */
static bool is_printable(uint32_t b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

/* The others, 0x00..0x20, 0x7F..0xA0 and 0xAD, are numbered in order from U+0100. */
uint32_t td_uni_byte_char(unsigned char byte) {
    if (is_printable(byte))
        return byte;
    return 0x100u + (byte <= 0x20 ? byte : byte <= 0xA0 ? byte - 0x7Fu + 0x21u : 0x43u);
}

int td_uni_char_byte(uint32_t cp) {
    if (cp < 0x100)
        return is_printable(cp) ? (int)cp : -1;
    uint32_t k = cp - 0x100;
    return k <= 0x20 ? (int)k : k <= 0x42 ? (int)(k - 0x21 + 0x7F) : k == 0x43 ? 0xAD : -1;
}
