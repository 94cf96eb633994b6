"""Recomputes the recursive drafts of the Gemma 4 fixtures in double precision.

The fixtures' own vectors were computed in float32. Their drafts feed back into themselves four times through attention
with scale 1, which amplifies float32 rounding in a few steps to 1e-3 of a logit; against these double-precision values
an implementation can be held to the tolerance of the other vectors. Needs torch and transformers >= 5.17.

    python3 tools/gemma4_drafts_f64.py tests/fixtures/vectors OUT_DIR

writes OUT_DIR/<fixture>.drafts_f64.safetensors (kept as drafts_f64.safetensors beside the fixture) with, for N in 5, 20,
40: draftN_tokens [4], draftN_logits [4, V], draftN_hidden [B], rounded to float32 at the end.
"""
import sys

import torch

torch.Tensor.float = lambda self, *a, **k: self.double()  # transformers widens to float32 here and there
torch.set_default_dtype(torch.float64)
matmul = torch.Tensor.__matmul__
torch.Tensor.__matmul__ = lambda a, b: matmul(a.double(), b.double())
softmax = torch.nn.functional.softmax
torch.nn.functional.softmax = lambda x, *a, **k: softmax(x, *a, **{**k, "dtype": torch.float64})

from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModelForCausalLM, Gemma4AssistantForCausalLM  # noqa: E402


def drafts(trunk, assistant, ids, n):
    out = trunk(input_ids=ids[None, :n], output_hidden_states=True, return_shared_kv_states=True, use_cache=True)
    kv = {k: (v[0].double(), v[1].double()) for k, v in out.shared_kv_states.items()}
    hidden = out.hidden_states[-1][:, -1:]
    token = out.logits[0, -1].argmax()
    tokens, logits = [], []
    for _ in range(4):
        e = trunk.get_input_embeddings()(token[None, None])
        step = assistant(inputs_embeds=torch.cat([e, hidden], -1), position_ids=torch.tensor([[n]]),
                         shared_kv_states=kv, attention_mask=None)
        hidden = step.last_hidden_state
        token = step.logits[0, -1].argmax()
        tokens.append(token)
        logits.append(step.logits[0, -1])
    return torch.stack(tokens).int(), torch.stack(logits), hidden[0, 0]


def main(root, dest):
    for name in ("gemma4-dense", "gemma4-ple", "gemma4-moe"):
        trunk = AutoModelForCausalLM.from_pretrained(f"{root}/{name}", attn_implementation="eager",
                                                     experts_implementation="eager").double().eval()
        assistant = Gemma4AssistantForCausalLM.from_pretrained(
            f"{root}/{name}-assistant", attn_implementation="eager").double().eval()
        f32 = load_file(f"{root}/{name}/vectors.safetensors")
        ids, result = f32["input_ids"].long(), {}
        with torch.no_grad():
            for n in (5, 20, 40):
                tokens, logits, hidden = drafts(trunk, assistant, ids, n)
                assert torch.equal(tokens, f32[f"draft{n}_tokens"]), (name, n)
                print(name, n, "float32 vectors are off by", (logits - f32[f"draft{n}_logits"]).abs().max(-1).values.tolist())
                result[f"draft{n}_tokens"] = tokens
                result[f"draft{n}_logits"] = logits.to(torch.float32)
                result[f"draft{n}_hidden"] = hidden.to(torch.float32)
        save_file({k: v.contiguous() for k, v in result.items()}, f"{dest}/{name}.drafts_f64.safetensors")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
