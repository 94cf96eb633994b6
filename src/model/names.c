/* names.c - walks the tensors of a checkpoint past a family's judgement. */
#include "model/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool td_name_starts(const char *s, const char *prefix) {
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool td_name_ends(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

bool td_name_in(const char *s, const char *const *list) {
    for (; *list; list++)
        if (strcmp(s, *list) == 0)
            return true;
    return false;
}

const char *td_name_after_number(const char *s, uint32_t below, uint32_t *out) {
    char *end;
    if (*s < '0' || *s > '9' || (*s == '0' && s[1] != '.')) /* one spelling a number: the one that is looked up */
        return NULL;
    unsigned long v = strtoul(s, &end, 10);
    if (*end != '.' || v >= below)
        return NULL;
    *out = (uint32_t)v;
    return end + 1;
}

/* Parts of a multimodal checkpoint that a text engine leaves alone, and buffers that can be derived. */
static bool skipped_everywhere(const char *name) {
    static const char *const towers[] = {"vision_tower.",    "audio_tower.",           "embed_vision.", "embed_audio.",
                                         "vision_embedder.", "multi_modal_projector.", "visual.",       NULL};
    static const char *const clips[] = {"input_min", "input_max", "output_min", "output_max", NULL};
    for (const char *const *p = towers; *p; p++)
        if (td_name_starts(name, *p))
            return true;
    for (const char *const *p = clips; *p; p++)
        if (td_name_ends(name, *p))
            return true;
    return strstr(name, "rotary_emb") != NULL;
}

static void module_of(const char *name, char *buf, size_t size) {
    static const char *const suffixes[] = {".weight", ".scales", ".biases", NULL};
    snprintf(buf, size, "%s", name);
    for (const char *const *s = suffixes; *s; s++)
        if (td_name_ends(buf, *s)) {
            buf[strlen(buf) - strlen(*s)] = '\0';
            return;
        }
}

/* Scales of what is no matrix, biases without scales: nothing would read them. */
static bool stray_scales(const td_checkpoint *ck, const char *name, const char *module) {
    char sibling[300];
    bool biases = td_name_ends(name, ".biases");
    if (!biases && !td_name_ends(name, ".scales"))
        return false;
    snprintf(sibling, sizeof sibling, "%s%s", module, biases ? ".scales" : ".weight");
    const td_tensor *t = td_checkpoint_find(ck, sibling);
    if (!t && !biases) /* fused experts lie under the bare name */
        t = td_checkpoint_find(ck, module);
    return !t || t->n_dims < 2;
}

td_status td_names_check(const td_checkpoint *ck, td_name_judge judge, const void *family, const char *model,
                         uint32_t *n_skipped, td_error *err) {
    *n_skipped = 0;
    for (size_t i = 0; i < td_checkpoint_n_tensors(ck); i++) {
        const td_tensor *t = td_checkpoint_tensor_at(ck, i);
        const char *full = t->name, *name = td_model_plain_name(td_checkpoint_known_name(ck, t));
        char module[256];
        module_of(name, module, sizeof module);
        td_name_class k = skipped_everywhere(name) ? TD_NAME_SKIPPED : judge(family, module);
        if (k == TD_NAME_USED && stray_scales(ck, name, module))
            return td_fail(err, TD_E_MODEL, "%s: tensor %s belongs to nothing that is quantised",
                           td_checkpoint_path(ck), full);
        if (k == TD_NAME_UNKNOWN)
            return td_fail(err, TD_E_MODEL, "%s: tensor %s is not part of %s", td_checkpoint_path(ck), full, model);
        *n_skipped += k == TD_NAME_SKIPPED;
    }
    return TD_OK;
}
