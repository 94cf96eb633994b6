#!/usr/bin/env bash
# tandem run on the reference checkpoints: the JSON object, drafting against plain, quantise and run again, pipes.
# shellcheck source=tests/cli/support.sh
. "$2/tests/cli/support.sh"

ids="2,17,45,99,120,7,8,300,12,13"

# every field that is promised
run 0 run --prompt-ids $ids -n 24 --ignore-eos --json --model "$vectors/gemma4-ple" \
    --mtp-assistant-model "$vectors/gemma4-ple-assistant" --num-mtp-tokens 3 --mtp-fixed --threads 2
[ -s "$tmp/err" ] && fail "--json and a word on stderr: $(cat "$tmp/err")"
[ "$(wc -l <"$tmp/out")" = 1 ] || fail "more than one line of JSON"
for field in ids text finish_reason prompt_tokens cached_tokens generated rounds drafted accepted seconds.load \
    seconds.prefill seconds.decode tokens_per_second peak_memory_mb mtp.active mtp.reason mtp.kind mtp.depth seed model; do
    value "$field" >/dev/null || fail "no field $field in $(cat "$tmp/out")"
done
is generated 24
is prompt_tokens 10
is cached_tokens 0
is finish_reason length
is mtp.active true
is mtp.kind assistant
is mtp.depth 3
is mtp.reason ""
is seed 0
same "$("$json_get" "$tmp/out" accepted --len)" 3 "positions of accepted"
drafted=$(value ids)
[ "$(value drafted)" -gt 0 ] || fail "nothing was drafted"

# the same ids without drafts, at other depths, widths of pass and thread counts
plain() {
    run 0 run --prompt-ids $ids -n 24 --ignore-eos --json --model "$vectors/gemma4-ple" "$@"
    same "$(value ids)" "$drafted" "ids with $*"
}
plain
is mtp.active false
[ -n "$(value mtp.reason)" ] || fail "no reason for plain decoding"
plain --prefill-size 1
plain --prefill-size 7 --threads 1
plain --no-packing
for depth in 0 1 5 8; do
    plain --mtp-assistant-model "$vectors/gemma4-ple-assistant" --num-mtp-tokens $depth --mtp-fixed
done
is mtp.depth 8
is mtp.auto false
plain --mtp-assistant-model "$vectors/gemma4-ple-assistant" --num-mtp-tokens 5 --mtp-min-prob 0.5
is mtp.auto true
plain --mtp-assistant-model "$vectors/gemma4-ple-assistant" --mtp-bits 4 --prefill-size 4

# sampled text too: a function of the seed alone
sampled() {
    run 0 run --prompt-ids $ids -n 24 --ignore-eos --json --model "$vectors/gemma4-dense" --temp 0.9 --top-k 50 \
        --repeat-penalty 1.1 --seed "$@"
    value ids
}
one=$(sampled 7)
same "$(sampled 7 --mtp-assistant-model "$vectors/gemma4-dense-assistant")" "$one" "sampled ids with drafts"
is mtp.active true
[ "$(sampled 8)" != "$one" ] || fail "another seed, the same ids"
is seed 8

# the options that change what is sampled
run 0 run --prompt-ids $ids -n 6 --ignore-eos --json --model "$vectors/gemma4-dense"
first=$(value ids.0)
run 0 run --prompt-ids $ids -n 6 --ignore-eos --json --model "$vectors/gemma4-dense" --logit-bias "$first=-inf"
[ "$(value ids.0)" != "$first" ] || fail "a banned token came"
run 0 run --prompt-ids $ids -n 6 --ignore-eos --json --model "$vectors/gemma4-dense" --logit-bias 77=1000
is ids '[77,77,77,77,77,77]'

# what inspect says is what run does
run 0 inspect "$vectors/qwen35-moe" --json
is shape.experts_per_token 2
is draft_heads.used true
is left_alone 0
[ "$(value memory.recurrent)" -gt 0 ] || fail "no recurrent memory in the plan"
same "$(value memory.total)" $(($(value memory.weights) + $(value memory.draft_heads) + $(value memory.kv) + \
    $(value memory.recurrent) + $(value memory.scratch))) "total of the memory plan"
run 0 inspect "$vectors/qwen35-moe"
grep -q "8 experts, 2 a token" "$tmp/out" || fail "experts for people"
grep -q "recurrent memory" "$tmp/out" || fail "recurrent memory for people"
run 0 inspect "$vectors/qwen35-moe" --num-mtp-tokens 0 --json
is draft_heads.used false
is left_alone 19

# quantise, look, run
run 0 quantize "$vectors/gemma4-moe" "$tmp/moe-4bit" --bits 4 --json
[ "$(value bytes_after)" -lt "$(value bytes_before)" ] || fail "quantising made it larger"
value classes.attention.bits_per_weight >/dev/null || fail "no classes in the summary"
run 1 quantize "$vectors/gemma4-moe" "$tmp/moe-4bit" && says "is not empty"
run 0 quantize "$vectors/gemma4-moe" "$tmp/moe-4bit" --bits 8 --force --quiet
[ -s "$tmp/out" ] && fail "--quiet and a word on stdout"
run 1 quantize "$tmp/moe-4bit" "$tmp/moe-again" && says "quantised already"
run 0 inspect "$tmp/moe-4bit" --json
is kind trunk
is family gemma4
value classes.router.bits_per_weight >/dev/null || fail "no census"
value memory.total >/dev/null || fail "no memory plan"
value kv.bytes_per_token >/dev/null || fail "no KV layout"
run 0 inspect "$tmp/moe-4bit"
grep -q "keys and values" "$tmp/out" || fail "inspect for people"
run 0 run --prompt-ids $ids -n 16 --ignore-eos --json --model "$tmp/moe-4bit"
plain_ids=$(value ids)
run 0 quantize "$vectors/gemma4-moe-assistant" "$tmp/moe-assistant-4bit" --bits 4 --quiet
run 0 inspect "$tmp/moe-assistant-4bit" --json
is kind assistant
is trunk_width 64
run 0 run --prompt-ids $ids -n 16 --ignore-eos --json --model "$tmp/moe-4bit" \
    --mtp-assistant-model "$tmp/moe-assistant-4bit"
same "$(value ids)" "$plain_ids" "ids of the quantised pair"

# heads inside a checkpoint survive, and draft for the quantised trunk
run 0 quantize "$vectors/qwen35-moe" "$tmp/qwen-8bit" --bits 8 --quiet
run 0 inspect "$tmp/qwen-8bit" --json
[ "$(value draft_head_tensors)" -gt 0 ] || fail "the draft heads are gone"
run 0 run --prompt-ids $ids -n 16 --ignore-eos --json --model "$tmp/qwen-8bit" --no-mtp
plain_ids=$(value ids)
is mtp.active false
run 0 run --prompt-ids $ids -n 16 --ignore-eos --json --model "$tmp/qwen-8bit" --mtp --num-mtp-tokens 3 \
    --mtp-fixed
same "$(value ids)" "$plain_ids" "ids with the quantised heads"
is mtp.kind heads

# a reader that goes away is no failure
"$tandem" run --prompt-ids $ids -n 2000 --ignore-eos --model "$vectors/gemma4-dense" --json 2>"$tmp/err" | head -c 1 \
    >/dev/null
same "${PIPESTATUS[0]}" 0 "exit code after a broken pipe"

# a standard output that cannot be written to is one, whatever writes
if [ -w /dev/full ]; then
    full() {
        "$tandem" "$@" >/dev/full 2>"$tmp/err"
        same $? 1 "exit code of $1 with a full disk"
        grep -q "^tandem: cannot write to standard output" "$tmp/err" || fail "$1, full disk: $(cat "$tmp/err")"
    }
    full --help
    full inspect "$vectors/gemma4-dense"
    full inspect "$vectors/gemma4-dense" --json
    full run --prompt-ids $ids -n 4 --model "$vectors/gemma4-dense" --json
    full run -p "Once upon a time" -n 4
    full demo -p Hello -n 4 --repeats 1
    full chat --json -n 4 --script <(echo Hello)
fi
pass
