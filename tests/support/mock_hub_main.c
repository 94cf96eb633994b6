/* mock_hub_main.c - the mock hub as a program, for shell tests: mock_hub DIR serves the files directly in DIR as
 * "org/name" (*.safetensors and *.gguf as large ones), prints its URL and ends with its standard input. The first
 * answer of a file whose name is the second argument is cut after its third, a number of bytes; with a fourth argument
 * it stalls there. MOCK_HUB_TOKEN is demanded when it is set. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/mock_hub.h"

static bool put(mock_hub *hub, const char *dir, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    void *bytes = size >= 0 ? malloc((size_t)size + 1) : NULL;
    bool ok = bytes && fread(bytes, 1, (size_t)size, f) == (size_t)size;
    if (ok)
        mock_hub_put(hub, name, bytes, (size_t)size, strstr(name, ".safetensors") || strstr(name, ".gguf"));
    free(bytes);
    fclose(f);
    return ok;
}

int main(int argc, char **argv) {
    static mock_hub hub;
    if (argc < 2 || !mock_hub_open(&hub, NULL, NULL))
        return 2;
    DIR *d = opendir(argv[1]);
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.' && !put(&hub, argv[1], e->d_name))
            return 2;
    if (d)
        closedir(d);
    mock_file *f = argc > 3 ? mock_hub_file(&hub, argv[2]) : NULL;
    if (f)
        f->fault = (mock_fault){.times = 1, .cut_after = atol(argv[3]), .stall = argc > 4};
    if (getenv("MOCK_HUB_TOKEN"))
        hub.token = getenv("MOCK_HUB_TOKEN");
    printf("%s\n", hub.url);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    mock_hub_close(&hub);
    return 0;
}
