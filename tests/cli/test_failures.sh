#!/usr/bin/env bash
# Models that cannot be run: exit code 1 and one line that says what is wrong and where.
# shellcheck source=tests/cli/support.sh
. "$2/tests/cli/support.sh"

copy() { # copy FIXTURE: a copy to spoil, in $tmp/FIXTURE
    rm -rf "${tmp:?}/$1"
    cp -r "$vectors/$1" "$tmp/$1"
    rm -f "$tmp/$1/vectors.safetensors"
    chmod -R u+w "$tmp/$1"
}

ids=(--prompt-ids 2,3,4 -n 4)

# not there, empty, not a model
run 1 run "${ids[@]}" --model "$tmp/nowhere" && says "nowhere"
run 1 run "${ids[@]}" --model org/name-that-is-not-cached && says "org/name-that-is-not-cached"
mkdir "$tmp/empty"
run 1 run "${ids[@]}" --model "$tmp/empty" && says "empty"
run 1 inspect "$tmp/empty" && says "empty"
run 1 quantize "$tmp/empty" "$tmp/out-dir" && says "empty"

# a truncated file
copy gemma4-dense
size=$(wc -c <"$tmp/gemma4-dense/model.safetensors")
for keep in 0 7 8 100 $((size / 2)) $((size - 1)); do
    head -c "$keep" "$vectors/gemma4-dense/model.safetensors" >"$tmp/gemma4-dense/model.safetensors"
    run 1 run "${ids[@]}" --model "$tmp/gemma4-dense" && says "model.safetensors"
done

# a file that is something else
echo "version https://git-lfs.github.com/spec/v1" >"$tmp/gemma4-dense/model.safetensors"
run 1 run "${ids[@]}" --model "$tmp/gemma4-dense" && says "model.safetensors"
cp "$vectors/gemma4-dense/config.json" "$tmp/gemma4-dense/model.safetensors"
run 1 run "${ids[@]}" --model "$tmp/gemma4-dense" && says "model.safetensors"

# tensors of another model under this configuration
cp "$vectors/gemma4-ple/model.safetensors" "$tmp/gemma4-dense/model.safetensors"
run 1 run "${ids[@]}" --model "$tmp/gemma4-dense" && says "gemma4-dense"
run 1 inspect "$tmp/gemma4-dense" && says "gemma4-dense"

# a mislabelled tensor: the header calls F32 data something else of the same width
copy gemma4-dense
LC_ALL=C sed -i '1s/"dtype":"F32"/"dtype":"I32"/' "$tmp/gemma4-dense/model.safetensors"
run 1 run "${ids[@]}" --model "$tmp/gemma4-dense" && says "I32"

# configurations
copy gemma4-dense
echo '{' >"$tmp/gemma4-dense/config.json"
run 1 run "${ids[@]}" --model "$tmp/gemma4-dense" && says "config.json"
echo '{"model_type": "gpt2"}' >"$tmp/gemma4-dense/config.json"
run 1 run "${ids[@]}" --model "$tmp/gemma4-dense" && says "gpt2"

# a standard input that cannot be read
"$tandem" run -f - -n 4 <"$tmp" >"$tmp/out" 2>"$tmp/err"
[ $? = 1 ] || fail "a directory as standard input: $(cat "$tmp/err")"
says "standard input"

# tokens out of range, prompts too long (--no-mtp: its assistant lies beside it, and would be suggested)
run 1 run --prompt-ids 2,400 --no-mtp --model "$vectors/gemma4-dense" && says "400"
run 1 run --prompt-ids "$(seq -s, 2 200)" -n 4 --ctx-size 64 --no-mtp --model "$vectors/gemma4-dense" && says "199" "64"

# no tokenizer: ids work, text does not
run 0 run "${ids[@]}" --model "$vectors/gemma4-dense" --quiet && says "no tokenizer" "--json"
run 1 run -p hello -n 4 --no-mtp --model "$vectors/gemma4-dense" && says "tokenizer"
run 1 run -p hello -n 4 --chat --no-mtp --model "$vectors/gemma4-dense" && says "$vectors/gemma4-dense"
run 1 run -f "$tmp/no-such-file" --no-mtp --model "$vectors/gemma4-dense" && says "no-such-file"
copy gemma4-dense
head -c 300 "$root/models/gemma4-demo-4bit/tokenizer.json" >"$tmp/gemma4-dense/tokenizer.json" 2>/dev/null ||
    echo '{"version": "1.0", "model"' >"$tmp/gemma4-dense/tokenizer.json"
run 1 run "${ids[@]}" --model "$tmp/gemma4-dense" && says "tokenizer.json"

# memory
run 1 run "${ids[@]}" --memory-limit-mb 1 --model "$vectors/gemma4-dense" && says "MiB" "allowed"
run 0 run "${ids[@]}" --memory-limit-mb 1 --ignore-memory --model "$vectors/gemma4-dense"

# drafters that are not there or not this trunk's
run 1 run "${ids[@]}" --mtp --model "$vectors/gemma4-dense" && says "--mtp" "no draft heads"
run 1 run "${ids[@]}" --mtp-bits 4 --model "$vectors/gemma4-dense" && says "--mtp-bits" "no draft heads"
run 1 run "${ids[@]}" --mtp-shortlist 9 --model "$vectors/gemma4-dense" && says "--mtp-shortlist" "no draft heads"
run 1 run "${ids[@]}" --mtp-shortlist 9 --model "$vectors/gemma4-dense" \
    --mtp-assistant-model "$vectors/gemma4-dense-assistant" && says "shortlist" "an assistant drafts"
run 1 run "${ids[@]}" --mtp --model "$vectors/gemma4-dense" --draft-model "$vectors/gemma4-dense" &&
    says "draft heads" "draft model"
run 1 run "${ids[@]}" --mtp-bits 4 --model "$vectors/gemma4-dense" --draft-model "$vectors/gemma4-dense" &&
    says "draft model"
run 1 run "${ids[@]}" --model "$vectors/gemma4-dense" --mtp-assistant-model "$tmp/nowhere" && says "nowhere"
run 1 run "${ids[@]}" --model "$vectors/gemma4-dense" --mtp-assistant-model "$vectors/gemma4-moe" && says "gemma4-moe"
run 1 run "${ids[@]}" --model "$vectors/gemma4-dense" --mtp-assistant-model "$vectors/gemma4-ple-assistant" &&
    says "gemma4-ple-assistant"
run 1 run "${ids[@]}" --model "$vectors/gemma4-dense-assistant" && says "assistant"
run 1 run "${ids[@]}" --model "$vectors/gemma4-ple" --mtp-assistant-model "$vectors/gemma4-dense-assistant" &&
    says "gemma4-dense-assistant"

# chat needs a tokenizer and says so
run 1 chat --script /dev/stdin --model "$tmp/nowhere" && says "nowhere"
run 1 chat --script "$tmp/no-script" && says "no-script"
pass
