/* hub.h - models of the Hugging Face hub: found in the cache, downloaded into it, suggested as drafters.
 *
 * The cache has huggingface_hub's layout, so that other tools find what was downloaded here and the reverse:
 *
 *   <cache>/models--org--name/blobs/<checksum>             the files' contents
 *                             blobs/<checksum>.incomplete  a download that goes on where it stopped
 *                             snapshots/<commit>/<file>    relative links into blobs/
 *                             refs/<revision>              the commit that a branch or tag was at
 *   <cache>/.locks/models--org--name/<checksum>.lock       flock()ed by whoever downloads
 *
 * An id is org/name[@revision][:file], `file` being the name of a GGUF file, or the quantisation that its name ends
 * with ("Q4_K_M"). td_hub_resolve (format/checkpoint.h) looks into the cache alone; what is here may use the network.
 */
#ifndef TD_FORMAT_HUB_H
#define TD_FORMAT_HUB_H

#include "base/status.h"

/* Everything is borrowed for the length of a call. */
typedef struct td_hub_options {
    const char *cache;    /* the directory above; made when missing. NULL: nothing is found or kept */
    const char *endpoint; /* NULL: https://huggingface.co. "http://" is taken for a mirror that somebody asked for */
    const char *token;    /* of the hub account, or NULL. Sent to the endpoint alone, never to where it redirects, and
                           * in clear (http) to this machine alone */
    const char *proxy;    /* as libcurl's CURLOPT_PROXY, or NULL: none */
    const char *no_proxy; /* hosts reached without it, separated by commas, or NULL */
    const char *ca_file;  /* PEM certificates to trust instead of the system's, or NULL */
    bool offline;         /* no network at all */
    bool refresh;         /* ask the hub what the revision is now, even when the cache has it */
    const char *const
        *include; /* [n_include] patterns (as of a shell, * also crosses /) of files wanted beside the model's */
    size_t n_include;
    unsigned attempts;   /* at a request that fails for reasons that pass (default 5); 1 MiB of progress starts anew */
    unsigned backoff_ms; /* before the second attempt, doubling from there to 30 s (default 500) */
    unsigned stall_s;    /* a connection that brings nothing for so long is cut (default 30) */
    td_log_fn log;
    td_progress_fn progress; /* stage "download", in bytes of everything wanted; false stops, what is there stays */
    void *user;              /* of both */
} td_hub_options;

td_hub_options td_hub_options_default(void);

/* The path that PATH-OR-ID means: an existing path as it is; else an id out of the cache; else, unless offline,
 * downloaded: config.json, generation_config.json, tokenizer and chat template files and the safetensors weights, or
 * the GGUF file named, and nothing else. refs/<revision> is written last. *out is td_free'd by the caller.
 * Waits for the network; safe to call from several threads and processes on one cache.
 * Errors: TD_E_NOTFOUND (no such path, repository, revision or file; offline), TD_E_ARG (the hub wants a token or an
 * accepted licence; several files fit; the endpoint is no URL), TD_E_LIMIT (the disk has not enough room), TD_E_IO
 * (network, server or disk), TD_E_FORMAT (the server's answer makes no sense, or a file is not what its checksum says:
 * then it has been removed), TD_E_CANCELLED, TD_E_NOMEM. */
td_status td_hub_fetch(const char *path_or_id, const td_hub_options *opt, char **out, td_error *err) TD_MUST_CHECK;

/* An assistant (Gemma 4 drafter) for the trunk checkpoint at `trunk`: a directory beside it, or a repository in `cache`
 * (may be NULL) whose config.json says that it was made for a trunk of these sizes; of several, the one whose name has
 * most in common with the trunk's. *out (td_free) is its path or its hub id, or NULL when there is none or the trunk is
 * no Gemma 4. Reads configurations only; what it cannot read it passes over. Errors: TD_E_NOMEM. */
td_status td_hub_suggest_assistant(const char *trunk, const char *cache, char **out, td_error *err) TD_MUST_CHECK;

#endif
