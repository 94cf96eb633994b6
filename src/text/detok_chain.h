/* detok_chain.h - the components of a decoder, as detok_chain.c reads them and detok.c runs them. */
#ifndef TD_TEXT_DETOK_CHAIN_H
#define TD_TEXT_DETOK_CHAIN_H

#include "text/detok.h"
#include "text/tokenizer_pattern.h"

#define TD_DECODER_MAX_LINKS 16

typedef enum td_link_kind {
    TD_LINK_JOIN,          /* no decoder: a space before every token but the first */
    TD_LINK_REPLACE,       /* a literal, searched as characters go by */
    TD_LINK_REPLACE_REGEX, /* in each token by itself */
    TD_LINK_STRIP,
    TD_LINK_METASPACE,
    TD_LINK_BYTE_FALLBACK,
    TD_LINK_BYTE_LEVEL,
    TD_LINK_FUSE,
} td_link_kind;

typedef struct td_link {
    td_link_kind kind;
    td_pattern *pattern; /* REPLACE, REPLACE_REGEX */
    char *text;          /* REPLACE*: what comes in; STRIP, METASPACE: the character; owned */
    size_t size;
    size_t start, stop; /* STRIP: how many characters at most */
    bool drop_first;    /* METASPACE: the marks of the first token vanish */
    bool once;          /* STRIP: its one token is the whole text */
} td_link;

struct td_detok_spec {
    td_link links[TD_DECODER_MAX_LINKS];
    size_t n;
};

#endif
