/* json_get - reads one value out of JSON for shell tests.
 *
 *   json_get FILE [PATH]      FILE "-" is standard input; PATH like "accepted.0" or "mtp.active"
 *   json_get FILE PATH --len  the number of members of an array or object
 *
 * Prints strings bare, everything else as compact JSON. Exit 1: not JSON, or nothing at PATH. Without PATH it only
 * checks that the input is one JSON value and nothing more. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *step(json_t *at, const char *key) {
    if (json_is_array(at))
        return json_array_get(at, strtoul(key, NULL, 10));
    return json_object_get(at, key);
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    json_error_t error;
    FILE *in = strcmp(argv[1], "-") == 0 ? stdin : fopen(argv[1], "rb");
    if (in == NULL) {
        perror(argv[1]);
        return 1;
    }
    json_t *root = json_loadf(in, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    fclose(in);
    if (root == NULL) {
        fprintf(stderr, "json_get: %s: line %d: %s\n", argv[1], error.line, error.text);
        return 1;
    }
    json_t *at = root;
    char *path = argc > 2 ? argv[2] : (char[]){""};
    for (char *key = strtok(path, "."); key != NULL && at != NULL; key = strtok(NULL, "."))
        at = step(at, key);
    int rc = 0;
    if (at == NULL) {
        fprintf(stderr, "json_get: nothing there\n");
        rc = 1;
    } else if (argc > 3) {
        printf("%zu\n", json_is_array(at) ? json_array_size(at) : json_object_size(at));
    } else if (argc > 2 && json_is_string(at)) {
        puts(json_string_value(at));
    } else if (argc > 2) {
        json_dumpf(at, stdout, JSON_ENCODE_ANY | JSON_COMPACT);
        putchar('\n');
    }
    json_decref(root);
    return rc;
}
