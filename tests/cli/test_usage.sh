#!/usr/bin/env bash
# Wrong command lines: exit code 2 and one line that names the option, the value and what was expected.
# shellcheck source=tests/cli/support.sh
. "$2/tests/cli/support.sh"

run 0 --help && grep -q quantize "$tmp/out" || fail "help"
run 0 --version && grep -q '^tandem [0-9]' "$tmp/out" || fail "version"
for command in run chat demo inspect quantize; do
    run 0 $command --help
    grep -q "^Usage: tandem $command" "$tmp/out" || fail "$command --help"
done

run 2 && says "no command given"
run 2 qantize && says "qantize" "did you mean 'quantize'"
run 2 frobnicate && says "frobnicate" "--help"

run 2 run && says "-p TEXT"
run 2 run -p a -f b && says "one prompt"
run 2 run -p a --tmep 1 && says "--tmep" "did you mean --temp"
run 2 run -p a --zzzzzzzz && says "--zzzzzzzz" "--help"
run 2 run -p a -z && says "-z"
run 2 run -p a --temp hot && says "--temp" "'hot'" "a number from 0 to 100"
run 2 run -p a --temp -1 && says "--temp" "'-1'"
run 2 run -p a --temp nan && says "--temp" "'nan'"
run 2 run -p a --top-p=1.5 && says "--top-p" "'1.5'" "from 0 to 1"
run 2 run -p a -n 12x && says "--max-tokens" "'12x'"
run 2 run -p a -n -3 && says "--max-tokens" "'-3'"
run 2 run -p a -n 99999999999999999999999 && says "--max-tokens"
run 2 run -p a --seed 18446744073709551616 && says "--seed" "a whole number"
run 2 run -p a --seed 9007199254740992 && says "--seed" # more than readers of JSON can hold
run 2 run -p a --num-mtp-tokens 17 && says "--num-mtp-tokens" "'17'" "0 to 16 or auto"
run 2 run -p a --mtp-bits 5 && says "--mtp-bits" "'5'" "16|8|4"
run 2 run -p a --kv f64 && says "--kv" "'f64'" "f32|bf16"
run 2 run -p a --kv && says "--kv" "needs a value"
run 2 run -p --model x && says "--prompt" "needs a value"
run 2 run -p a --mtp=yes && says "--mtp" "takes no value" "'yes'"
run 2 run -p a --logit-bias 12 && says "--logit-bias" "'12'" "ID=VALUE"
run 2 run -p a --logit-bias x=1 && says "--logit-bias" "'x=1'"
run 2 run -p a extra && says "unexpected argument 'extra'"
run 2 run --prompt-ids 1,b,3 && says "--prompt-ids" "1,b,3" "1,2,3"
run 2 run --prompt-ids "" && says "--prompt-ids"
run 2 run --prompt-ids 1,2, && says "--prompt-ids"
run 2 run --prompt-ids -5 && says "--prompt-ids"
run 2 run --prompt-ids 1,2 --chat && says "--chat" "--prompt-ids"
run 2 run -p a --system b && says "--system needs --chat"

run 2 quantize && says "missing IN"
run 2 quantize a && says "missing OUT"
run 2 quantize a b --bits 9 && says "--bits" "'9'"
run 2 quantize a b --group 7 && says "--group" "'7'"
run 2 inspect && says "missing PATH-OR-ID"
run 2 inspect a --ctx-size 1 && says "--ctx-size" "'1'"
run 2 demo --repeats 0 && says "--repeats" "'0'"
run 2 chat --show-draft && says "--show-draft" "did you mean --show-drafts"
pass
