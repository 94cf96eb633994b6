/* places.h - where models are: the pair that comes with Tandem, and the hub cache of this user. The only part of the
 * program that reads the environment for paths and for the hub. */
#ifndef TD_CLI_PLACES_H
#define TD_CLI_PLACES_H

#include "format/hub.h"

/* Paths of the embedded trunk and its assistant; td_free both. Searched: the source tree that the program was built
 * in, the directory it was installed to, and beside the executable. TD_E_NOTFOUND names them. */
td_status td_places_embedded(char **trunk, char **assistant, td_error *err) TD_MUST_CHECK;

/* HF_HUB_CACHE, or HF_HOME/hub, or ~/.cache/huggingface/hub; td_free. NULL when there is no home. */
char *td_places_hub_cache(void);

/* The hub as this user has set it up. */
typedef struct td_hub_setup {
    td_hub_options options; /* borrows the strings below and the environment's */
    char *cache, *token;
} td_hub_setup;

/* The cache (td_places_hub_cache, unless `cache` is given), HF_ENDPOINT, HF_TOKEN (else the file that
 * `hf auth login` leaves: HF_TOKEN_PATH, or `token` in HF_HOME), HF_HUB_OFFLINE, the proxy variables that curl heeds,
 * and certificates of CURL_CA_BUNDLE or SSL_CERT_FILE. Free with td_places_hub_free. */
void td_places_hub(td_hub_setup *setup, const char *cache);
void td_places_hub_free(td_hub_setup *setup);

#endif
