/* tokenizer_impl.h - the inside of td_tokenizer, for the files that load it, encode with it and decode with it. */
#ifndef TD_TEXT_TOKENIZER_IMPL_H
#define TD_TEXT_TOKENIZER_IMPL_H

#include "text/bpe.h"
#include "text/detok.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_post.h"
#include "text/tokenizer_vocab.h"

struct td_tokenizer {
    td_vocab vocab;
    td_added_set added;            /* found in the text */
    td_added_set added_normalized; /* found in the normalised text */
    td_normalizer *normalizer;     /* NULL: none */
    td_pretokenizer *pretokenizer; /* NULL: none */
    td_bpe *bpe;
    td_post post;
    td_detok_spec *decoder;
    td_token bos, eos, pad, unk;
};

#endif
