/* module_class.h - what a tensor is for, told from its name: the rows of a census of a checkpoint, and the classes that
 * a quantiser treats alike. */
#ifndef TD_ENGINE_MODULE_CLASS_H
#define TD_ENGINE_MODULE_CLASS_H

#include "base/status.h"

/* X(enum suffix, name for people and for JSON) */
#define TD_MODULE_CLASS_LIST(X)                                                                                        \
    X(EMBEDDING, "embedding")             /* tokens to rows; the head too when it is tied */                           \
    X(LAYER_EMBEDDING, "layer embedding") /* Gemma: the table of per-layer inputs */                                   \
    X(HEAD, "head")                       /* rows to logits, untied */                                                 \
    X(ATTENTION, "attention")             /* projections of softmax attention */                                       \
    X(DELTA, "linear attention")          /* projections of Gated DeltaNet */                                          \
    X(MLP, "mlp")                         /* dense and shared gated MLPs */                                            \
    X(EXPERTS, "experts")                 /* stacked gated MLPs */                                                     \
    X(ROUTER, "router")                   /* the choice of experts */                                                  \
    X(LAYER_INPUT, "layer input")         /* Gemma: projections of per-layer inputs */                                 \
    X(DRAFT, "draft projection")          /* into, out of, and heads of a drafter */                                   \
    X(NORM, "norm")                       /* norms and other vectors and scalars */                                    \
    X(TOWER, "tower")                     /* vision and audio */                                                       \
    X(OTHER, "other")

typedef enum td_module_class {
#define TD_MODULE_CLASS_ENUM(id, name) TD_MODULE_##id,
    TD_MODULE_CLASS_LIST(TD_MODULE_CLASS_ENUM)
#undef TD_MODULE_CLASS_ENUM
        TD_MODULE_CLASS_COUNT
} td_module_class;

const char *td_module_class_name(td_module_class c);

/* Of a tensor name as published, in Hugging Face's or MLX's layout, with or without wrapper prefixes. */
td_module_class td_module_class_of(const char *tensor);

#endif
