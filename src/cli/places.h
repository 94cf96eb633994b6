/* places.h - where models are: the pair that comes with Tandem, and the hub cache of this user. The only part of the
 * program that reads the environment for paths. */
#ifndef TD_CLI_PLACES_H
#define TD_CLI_PLACES_H

#include "base/status.h"

/* Paths of the embedded trunk and its assistant; td_free both. Searched: the source tree that the program was built
 * in, the directory it was installed to, and beside the executable. TD_E_NOTFOUND names them. */
td_status td_places_embedded(char **trunk, char **assistant, td_error *err) TD_MUST_CHECK;

/* HF_HUB_CACHE, or HF_HOME/hub, or ~/.cache/huggingface/hub; td_free. NULL when there is no home. */
char *td_places_hub_cache(void);

#endif
