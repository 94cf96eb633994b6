#!/usr/bin/env bash
# The pair that comes with Tandem: no --model anywhere. Text in and out, chat scripts, the demonstration.
# shellcheck source=tests/cli/support.sh
. "$2/tests/cli/support.sh"
[ -d "$trunk" ] && [ -d "$assistant" ] || fail "no embedded pair in models/"

# one prompt, as text and as JSON
run 0 run -p "Once upon a time" -n 40 --num-mtp-tokens 4 --mtp-fixed
[ -s "$tmp/out" ] || fail "no text"
grep -q "tokens a round" "$tmp/err" || fail "no statistics: $(cat "$tmp/err")"
text=$(cat "$tmp/out")
run 0 run -p "Once upon a time" -n 40 --json
is mtp.active true
is generated 40
same "$(value text)" "$text" "streamed text against JSON"
ids=$(value ids)
run 0 run -p "Once upon a time" -n 40 --json --num-mtp-tokens 0
is mtp.active false
same "$(value ids)" "$ids" "ids without drafts"
same "$(value text)" "$text" "text without drafts"
printf 'Once upon a time' >"$tmp/prompt"
run 0 run -f "$tmp/prompt" -n 40 --json
same "$(value ids)" "$ids" "prompt from a file"
"$tandem" run -f - -n 40 --json <"$tmp/prompt" >"$tmp/out" 2>"$tmp/err" || fail "prompt from standard input"
same "$(value ids)" "$ids" "prompt from standard input"

# stop strings are not part of the text
word=$(printf '%s' "$text" | tr -s ' \n' '\n\n' | sed -n 8p)
run 0 run -p "Once upon a time" -n 40 --json --stop "$word"
is finish_reason stop
case "$(value text)" in *"$word"*) fail "the stop string is in the text" ;; esac

# memory: weight files, keys and values, and 150 MiB
run 0 run -p "Once upon a time" -n 40 --json
peak=$(value peak_memory_mb)
files=$(cat "$trunk"/*.safetensors "$assistant"/*.safetensors | wc -c)
[ "${peak%.*}" -le $((files / 1048576 + 150)) ] || fail "peak memory $peak MiB, weights $((files / 1048576)) MiB"

# weights read where they lie give the same text
packed=$(value ids)
run 0 run -p "Once upon a time" -n 40 --json --no-packing
same "$(value ids)" "$packed" "ids with --no-packing"

# a conversation from a script: two turns, the second evaluates only what is new
printf '%s\n' "Who are you?" "/stats" "Tell me a short story." "/compare" "/mtp off" "And another." "/mtp 2" "One more." \
    "/system You are a pirate." "Hello" "/quit" "never reached" >"$tmp/script"
run 0 chat --script "$tmp/script" --seed 5 -n 24 --json --temp 0.8 --num-mtp-tokens 4
same "$(wc -l <"$tmp/out")" 6 "JSON objects of five turns and a comparison"
cp "$tmp/out" "$tmp/all"
turn() { sed -n "$1p" "$tmp/all" >"$tmp/out"; }
turn 1
is message "Who are you?"
is seed 5
is mtp.active true
is cached_tokens 0
turn 2
is message "Tell me a short story."
[ "$(value cached_tokens)" -gt 10 ] || fail "the second turn began from nothing"
turn 3
is compare.identical true
value compare.ratio >/dev/null || fail "no ratio"
turn 4
is mtp.active false
turn 5
is mtp.depth 2
run 0 chat --script "$tmp/script" --seed 5 -n 24 --temp 0.8
grep -q "^> Who are you?" "$tmp/out" || fail "the script is not echoed"
grep -q "identical text: yes" "$tmp/err" || fail "/compare"

# from a pipe; the same seed, the same words
one=$(printf 'Hello\n' | "$tandem" chat --seed 3 -n 24 2>/dev/null) || fail "chat from a pipe"
two=$(printf 'Hello\n' | "$tandem" chat --seed 3 -n 24 --num-mtp-tokens 0 2>/dev/null) || fail "plain chat from a pipe"
same "$one" "$two" "chat with and without drafts"
printf '/nonsense\n' | "$tandem" chat >/dev/null 2>"$tmp/err"
same $? 2 "exit code of an unknown command in a script"

# the demonstration
run 0 demo --repeats 1 -n 24 -p "Hello" -p "What is a river?" --json
is identical true
same "$("$json_get" "$tmp/out" messages --len)" 2 "messages of the demonstration"
value ratio >/dev/null || fail "no ratio"

# Ctrl-C: what was done until then is reported
"$tandem" run -p "Once upon a time" -n 0 --ignore-eos >"$tmp/out" 2>"$tmp/err" &
pid=$!
for _ in $(seq 100); do
    [ -s "$tmp/out" ] && break
    sleep 0.1
done
kill -INT $pid
wait $pid
same $? 130 "exit code after Ctrl-C"
grep -q "stopped" "$tmp/err" || fail "no partial statistics: $(cat "$tmp/err")"
pass
