/* route_tokens.c - POST /tokenize and /detokenize, in the shapes of llama.cpp's server.
 *
 *     /tokenize    {"content": text, "add_special": false, "parse_special": true, "with_pieces": false}
 *                  -> {"tokens": [1, 2]}, with pieces [{"id": 1, "piece": text, or its bytes when it is no text}]
 *     /detokenize  {"tokens": [1, 2]} -> {"content": text} */
#include "base/alloc.h"
#include "engine/engine.h"
#include "serve/fields.h"
#include "serve/server_impl.h"
#include "text/token_trie.h"
#include "text/tokenizer_unicode.h"

typedef td_status (*answer_fn)(const td_engine *e, const td_fields *f, td_json_out *o);

static td_status write_piece(td_json_out *o, const td_engine *e, td_token id, td_error *err) {
    td_buf bytes;
    td_buf_init(&bytes, 1 << 20);
    td_status st = td_token_bytes(e->tokenizer, id, &bytes, err);
    td_out_key(o, "piece");
    if (td_uni_valid(bytes.data, bytes.size) == bytes.size) {
        td_out_text(o, bytes.data, bytes.size);
    } else {
        td_out_begin(o, '[');
        for (size_t i = 0; i < bytes.size; i++)
            td_out_int(o, (unsigned char)bytes.data[i]);
        td_out_end(o, ']');
    }
    td_buf_free(&bytes);
    return st;
}

static td_status write_tokens(td_json_out *o, const td_engine *e, const td_token *tokens, size_t n, bool pieces,
                              td_error *err) {
    td_out_begin(o, '[');
    for (size_t i = 0; i < n; i++) {
        if (!pieces) {
            td_out_int(o, tokens[i]);
            continue;
        }
        td_out_begin(o, '{');
        td_out_member_int(o, "id", tokens[i]);
        TD_TRY(write_piece(o, e, tokens[i], err));
        td_out_end(o, '}');
    }
    td_out_end(o, ']');
    return TD_OK;
}

static td_status tokenize(const td_engine *e, const td_fields *f, td_json_out *o) {
    const char *text = NULL;
    bool add = false, parse = true, pieces = false;
    td_error err = {0};
    td_token *tokens;
    size_t n;
    TD_TRY(td_field_text(f, "content", &text));
    if (!text)
        return td_field_missing(f, "content");
    TD_TRY(td_field_bool(f, "add_special", &add));
    TD_TRY(td_field_bool(f, "parse_special", &parse));
    TD_TRY(td_field_bool(f, "with_pieces", &pieces));
    size_t size = json_string_length(td_field(f, "content"));
    if (td_engine_tokenize(e, text, size, add, parse, &tokens, &n, &err) != TD_OK)
        return td_fault_of(f->fault, &err, "content");
    td_out_begin(o, '{');
    td_out_key(o, "tokens");
    td_status st = write_tokens(o, e, tokens, n, pieces, &err);
    td_out_end(o, '}');
    td_tokens_free(tokens);
    return st == TD_OK ? TD_OK : td_fault_of(f->fault, &err, NULL);
}

static td_status read_tokens(const td_engine *e, const td_fields *f, const json_t *list, td_token *out) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v))
            return td_field_fail(f, "tokens", "invalid_type", "has %s at %zu, expected token ids", td_json_kind(v), i);
        json_int_t id = json_integer_value(v);
        if (id < 0 || id >= (json_int_t)e->info.n_vocab)
            return td_field_fail(f, "tokens", "invalid_value", "has the token %lld at %zu, expected 0 to %u",
                                 (long long)id, i, e->info.n_vocab - 1);
        out[i] = (td_token)id;
    }
    return TD_OK;
}

static td_status detokenize(const td_engine *e, const td_fields *f, td_json_out *o) {
    json_t *list = NULL;
    td_error err = {0};
    char *text;
    size_t n_text;
    TD_TRY(td_field_array(f, "tokens", &list));
    if (!list)
        return td_field_missing(f, "tokens");
    td_token *tokens = td_calloc(json_array_size(list), sizeof *tokens);
    if (!tokens)
        return td_fault_of(f->fault, &(td_error){.status = TD_E_NOMEM}, NULL);
    td_status st = read_tokens(e, f, list, tokens);
    if (st == TD_OK) {
        st = td_engine_detokenize(e, tokens, json_array_size(list), true, &text, &n_text, &err);
        if (st != TD_OK)
            td_fault_of(f->fault, &err, "tokens");
    }
    td_free(tokens);
    if (st != TD_OK)
        return st;
    td_out_begin(o, '{');
    td_out_member_text(o, "content", text, n_text);
    td_out_end(o, '}');
    td_text_free(text);
    return TD_OK;
}

static void answer_with(td_server *s, td_exchange *x, answer_fn answer) {
    td_fault fault;
    td_buf json;
    json_t *root = NULL;
    size_t n;
    if (!td_server_enter(s, x, false))
        return;
    const char *body = td_exchange_body(x, &n);
    td_buf_init(&json, (size_t)1 << 31);
    td_json_out o = td_json_out_to(&json);
    td_status st = td_api_body_parse(body, n, &root, &fault);
    if (st == TD_OK)
        st = answer(s->model.engine, &(td_fields){root, "", &fault}, &o);
    if (st == TD_OK)
        td_server_reply_json(x, 200, &json);
    else
        td_server_reply_fault(x, &fault);
    td_buf_free(&json);
    json_decref(root);
    td_server_leave(s);
}

void td_route_tokenize(void *server, td_exchange *x) {
    answer_with(server, x, tokenize);
}

void td_route_detokenize(void *server, td_exchange *x) {
    answer_with(server, x, detokenize);
}
