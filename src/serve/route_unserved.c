/* route_unserved.c - paths of other interfaces that clients try first: an answer that says which one to use saves a
 * search for the wrong address. */
#include <string.h>

#include "serve/server_impl.h"

static const struct {
    const char *path;
    unsigned status;
    const char *why;
} unserved[] = {
    {"/v1/embeddings", 400, "this server generates text with a language model; it computes no embeddings"},
    {"/embeddings", 400, "this server generates text with a language model; it computes no embeddings"},
    {"/v1/responses", 404, "OpenAI's Responses API is not served here; tell the client to use /v1/chat/completions"},
    {"/responses", 404, "OpenAI's Responses API is not served here; tell the client to use /v1/chat/completions"},
    {"/v1/messages", 404, "Anthropic's API is not served here; tell the client to use /v1/chat/completions"},
    {"/completion", 404, "llama.cpp's own API is not served here; use /v1/completions"},
};

void td_route_unserved(void *server, td_exchange *x) {
    td_fault fault;
    (void)server;
    for (size_t i = 0; i < sizeof unserved / sizeof *unserved; i++)
        if (strcmp(unserved[i].path, td_exchange_path(x)) == 0) {
            td_fault_set(&fault, unserved[i].status, "unsupported_endpoint", NULL, "%s", unserved[i].why);
            td_server_reply_fault(x, &fault);
        }
}
