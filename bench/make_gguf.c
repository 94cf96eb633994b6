/* make_gguf.c - writes a checkpoint as a GGUF file, so that another engine can be compared on the same weights:
 *
 *   make_gguf <checkpoint directory> <out.gguf> [f32|f16|bf16|q8_0|q4_0|q5_0|q4_k|q5_k|q6_k [clusters]]
 *
 * clusters: with an assistant's centroids and token ordering, which llama.cpp's own converter leaves out and llama.cpp
 * may refuse to load.
 */
#include "../tests/support/gguf_convert.h"

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        td_format format;
    } formats[] = {{"f32", TD_FORMAT_F32},   {"f16", TD_FORMAT_F16},   {"bf16", TD_FORMAT_BF16},
                   {"q8_0", TD_FORMAT_Q8_0}, {"q4_0", TD_FORMAT_Q4_0}, {"q4_k", TD_FORMAT_Q4_K},
                   {"q6_k", TD_FORMAT_Q6_K}, {"q5_0", TD_FORMAT_Q5_0}, {"q5_k", TD_FORMAT_Q5_K}};
    for (size_t i = 0; i < sizeof formats / sizeof formats[0] && argc >= 3; i++)
        if (strcmp(argc > 3 ? argv[3] : "f32", formats[i].name) == 0) {
            gguf_convert_with(argv[1], argv[2],
                              &(gguf_convert_options){.matrices = formats[i].format,
                                                      .clusters = argc > 4 && strcmp(argv[4], "clusters") == 0});
            return 0;
        }
    fprintf(stderr, "usage: make_gguf <checkpoint directory> <out.gguf> "
                    "[f32|f16|bf16|q8_0|q4_0|q5_0|q4_k|q5_k|q6_k [clusters]]\n");
    return 2;
}
