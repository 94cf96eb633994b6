#!/usr/bin/env bash
# Models from the hub: pull, --model with a hub id, and the suggestion of an assistant, against a mock hub on this
# machine.
# shellcheck source=tests/cli/support.sh
. "$2/tests/cli/support.sh"
: "${TD_MOCK_HUB:?TD_MOCK_HUB must name the mock_hub program}"

run 0 pull --help && grep -q "^Usage: tandem pull ORG/NAME" "$tmp/out" || fail "help"
run 2 pull && says "missing ORG/NAME"
run 2 pull org/name --includ x && says "did you mean --include"

# offline, as everywhere in these tests until a hub is there
run 1 pull org/name && says "offline" "org/name" "models--org--name"
run 1 run --model org/name --prompt-ids 2,3 && says "offline" "org/name"
run 1 run --model "$vectors/gemma4-dense" --mtp-assistant-model org/none --prompt-ids 2,3 && says "assistant" "org/none"
run 1 run --model "$vectors/gemma4-dense" --draft-model org/none --prompt-ids 2,3 && says "draft model" "org/none"

# hub FILE BYTES [stall]: starts a mock of org/name, the small dense checkpoint; its first answer of FILE ends after BYTES
mkdir "$tmp/repo"
cp "$vectors/gemma4-dense/"{config.json,generation_config.json,model.safetensors} "$tmp/repo"
echo "nobody needs this" >"$tmp/repo/README.md"
hub() {
    coproc MOCK { exec "$TD_MOCK_HUB" "$tmp/repo" "$@"; }
    read -r HF_ENDPOINT <&"${MOCK[0]}" || fail "the mock hub does not start"
    export HF_ENDPOINT HF_HUB_OFFLINE=0
}
stop_hub() {
    local pid=$MOCK_PID end=${MOCK[1]}
    exec {end}>&-
    wait "$pid"
}
repo=$HOME/.cache/huggingface/hub/models--org--name
commit=0123456789abcdef0123456789abcdef01234567
weights=$(sha256sum "$tmp/repo/model.safetensors" | cut -d' ' -f1)

# a download that is cut once
hub model.safetensors 10000
run 0 pull org/name
same "$(cat "$tmp/out")" "$repo/snapshots/$commit" "the path"
grep -q "downloading 3 files" "$tmp/err" || fail "no word about the download: $(cat "$tmp/err")"
same "$(cat "$repo/refs/main")" $commit "refs/main"
same "$(readlink "$repo/snapshots/$commit/model.safetensors")" "../../blobs/$weights" "the link"
same "$(sha256sum <"$repo/blobs/$weights" | cut -d' ' -f1)" "$weights" "the content"
[ -e "$repo/snapshots/$commit/README.md" ] && fail "README.md was fetched"
run 0 pull org/name --quiet --include '*.md'
[ -s "$tmp/err" ] && fail "--quiet and words: $(cat "$tmp/err")"
[ -e "$repo/snapshots/$commit/README.md" ] || fail "README.md was not fetched"
run 1 pull org/other && says "org/other" "no such repository at $HF_ENDPOINT"
run 1 pull org/name:Q4_K_M && says "org/name" "no GGUF models"
run 1 pull org/name --include '*.zip' && says "no file fits '*.zip'"

# --model downloads what the cache lacks, and runs it
rm -rf "$repo"
ids=(--prompt-ids 2,17,45,99 -n 8 --ignore-eos --json)
run 0 run "${ids[@]}" --model org/name --hub-cache "$tmp/other-cache"
got=$(value ids)
[ -e "$tmp/other-cache/models--org--name/refs/main" ] || fail "--hub-cache was not used"
[ -e "$repo" ] && fail "the default cache was used beside --hub-cache"
run 0 run "${ids[@]}" --model "$vectors/gemma4-dense"
same "$(value ids)" "$got" "ids of the downloaded model"
stop_hub
run 0 run "${ids[@]}" --model org/name --hub-cache "$tmp/other-cache" # the hub is gone, the cache is there
same "$(value ids)" "$got" "ids out of the cache"
run 0 pull org/name --offline --hub-cache "$tmp/other-cache"
same "$(cat "$tmp/out")" "$tmp/other-cache/models--org--name/snapshots/$commit" "the path offline"

# a hub that wants a token: none, a wrong one, one in the environment, one that `hf auth login` left
export MOCK_HUB_TOKEN=hf_right
hub
run 1 pull org/name && says "org/name" "401" "set HF_TOKEN"
HF_TOKEN=hf_wrong run 1 pull org/name
says "refuses the token"
grep -q hf_ "$tmp/err" && fail "the token was printed: $(cat "$tmp/err")"
HF_TOKEN=hf_right run 0 pull org/name
rm -rf "$repo"
mkdir -p "$HOME/.cache/huggingface"
echo hf_right >"$HOME/.cache/huggingface/token"
run 0 pull org/name
HF_HUB_DISABLE_IMPLICIT_TOKEN=1 run 1 pull org/name
says "401"
stop_hub
unset MOCK_HUB_TOKEN
rm -rf "$repo" "$HOME/.cache/huggingface/token"

# Ctrl-C keeps what there is
hub model.safetensors 20000 stall
"$tandem" pull org/name >"$tmp/out" 2>"$tmp/err" </dev/null &
pid=$!
for _ in $(seq 600); do
    [ "$(stat -c %s "$repo/blobs/$weights.incomplete" 2>/dev/null)" = 20000 ] && break
    sleep 0.05
done
kill -INT $pid
wait $pid
same $? 130 "the exit code of an interrupted pull"
grep -q "^tandem: interrupted$" "$tmp/err" || fail "no word of the interrupt: $(cat "$tmp/err")"
same "$(wc -c <"$repo/blobs/$weights.incomplete")" 20000 "the bytes that are kept"
[ -e "$repo/refs/main" ] && fail "half a download has a ref"
run 0 pull org/name
same "$(sha256sum <"$repo/blobs/$weights" | cut -d' ' -f1)" "$weights" "the content"
stop_hub
export HF_HUB_OFFLINE=1

# an assistant that lies beside its trunk is suggested, and nothing more
dense=(--prompt-ids 2,3,4 -n 4 --model "$vectors/gemma4-dense")
run 0 run "${dense[@]}" && grep -qF "tandem: an assistant for it is at $vectors/gemma4-dense-assistant:\
 --mtp-assistant-model $vectors/gemma4-dense-assistant" "$tmp/err" || fail "no suggestion: $(cat "$tmp/err")"
run 0 run "${dense[@]}" --json
is mtp.active false
silent() {
    run 0 run "${dense[@]}" "$@"
    grep -q "an assistant for it" "$tmp/err" && fail "a suggestion with $*"
}
silent --quiet
silent --no-mtp
silent --lookup
silent --mtp-assistant-model "$vectors/gemma4-dense-assistant"
run 0 run "${dense[@]}" --json --mtp-assistant-model "$vectors/gemma4-dense-assistant"
is mtp.active true
mkdir "$tmp/alone"
cp -r "$vectors/gemma4-dense" "$vectors/gemma4-dense-assistant" "$tmp/alone"
chmod -R u+w "$tmp/alone"
run 0 run --prompt-ids 2,3,4 -n 4 --model "$tmp/alone/gemma4-dense"
grep -q "an assistant for it" "$tmp/err" || fail "no suggestion: $(cat "$tmp/err")"
sed -i 's/"backbone_hidden_size": 64/"backbone_hidden_size": 65/' "$tmp/alone/gemma4-dense-assistant/config.json"
run 0 run --prompt-ids 2,3,4 -n 4 --model "$tmp/alone/gemma4-dense"
grep -q "an assistant for it" "$tmp/err" && fail "another trunk's assistant is suggested: $(cat "$tmp/err")"
run 1 run "${dense[@]}" --mtp-assistant-model "$tmp/alone/gemma4-dense-assistant" && says "width 65" "has 64"

# and one in the hub cache, by its id
mkdir -p "$repo-assistant/snapshots" "$repo-assistant/refs"
cp -r "$vectors/gemma4-dense-assistant" "$repo-assistant/snapshots/$commit"
echo -n $commit >"$repo-assistant/refs/main"
run 0 run --prompt-ids 2,3,4 -n 4 --model org/name
grep -qF "an assistant for it is at org/name-assistant: --mtp-assistant-model org/name-assistant" "$tmp/err" ||
    fail "no suggestion out of the cache: $(cat "$tmp/err")"
run 0 run "${ids[@]}" --model org/name --mtp-assistant-model org/name-assistant
is mtp.active true
same "$(value ids)" "$got" "ids with the assistant"
pass
