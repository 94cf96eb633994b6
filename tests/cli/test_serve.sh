#!/usr/bin/env bash
# tandem serve as an operator meets it: what it says when it is ready, keys, logs that can be moved away, the end on a
# signal, and command lines that cannot be.
# shellcheck source=tests/cli/support.sh
. "$2/tests/cli/support.sh"
[ -d "$trunk" ] && [ -d "$assistant" ] || fail "no embedded pair in models/"
command -v curl >/dev/null || fail "this test needs curl"
unset TANDEM_API_KEY
server=
trap '[ -n "$server" ] && kill -9 "$server" 2>/dev/null; rm -rf "$tmp"' EXIT

# serve ARGUMENT...: starts a server on a free port and waits until it is ready.
serve() {
    rm -f "$tmp/ready" # the last server's words must not pass for this one's
    "$tandem" serve --port 0 --threads 2 --ctx-size 2048 "$@" >"$tmp/ready" 2>"$tmp/log" </dev/null &
    server=$!
    for _ in $(seq 300); do
        [ -s "$tmp/ready" ] && break
        kill -0 "$server" 2>/dev/null || fail "the server ended: $(cat "$tmp/log")"
        sleep 0.1
    done
    url=$(grep -o 'http://127\.0\.0\.1:[0-9]*' "$tmp/ready") || fail "no address in: $(cat "$tmp/ready")"
}

# ends SIGNAL CODE: sends it, and expects that exit code within seconds.
ends() {
    kill -"$1" "$server"
    for _ in $(seq 100); do
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    wait "$server"
    same $? "$2" "exit code after SIG$1"
    server=
}

# asks STATUS PATH [CURL ARGUMENT...]: the reply is in $tmp/out.
asks() {
    local want=$1 path=$2 got
    shift 2
    got=$(curl -s -m 60 -o "$tmp/out" -w '%{http_code}' -H 'Content-Type: application/json' "$@" "$url$path")
    same "$got" "$want" "status of $path: $(head -c 300 "$tmp/out")"
}
hello='{"messages":[{"role":"user","content":"Hello"}],"max_tokens":8,"seed":1}'

# for people
serve --alias first --alias second --temp 0
grep -q '^tandem: serving first at http://127.0.0.1:[0-9]* (mtp: assistant, up to [0-9]* drafts a round)$' \
    "$tmp/ready" || fail "the line that says ready: $(cat "$tmp/ready")"
same "$(wc -l <"$tmp/ready")" 1 "lines on stdout"
asks 200 /health
is status ok
asks 200 /ready
asks 200 /v1/models
is data.0.id first
asks 200 /v1/chat/completions -d "${hello%\}},\"model\":\"second\"}"
is model first
is seed 1
asks 200 /props
is default_generation_settings.params.temperature 0
is total_slots 4
asks 400 "/slots/0?action=erase" -X POST
asks 404 /v1/chat/completions -d "${hello%\}},\"model\":\"third\"}"
is error.code model_not_found
asks 200 /
grep -q 'POST /v1/chat/completions 200' "$tmp/log" || fail "no request in the log: $(cat "$tmp/log")"

# a port that is taken is noticed before anything is loaded
run 1 serve --port "${url##*:}"
grep -q "${url##*:}" "$tmp/err" || fail "the port is not named: $(cat "$tmp/err")"
ends INT 0

# for machines: JSON, keys, a log that is moved away
printf '# keys\nkey-of-file\n\n' >"$tmp/keys"
mkdir "$tmp/slots"
export TANDEM_API_KEY=key-of-env
serve --log-format json --log-file "$tmp/serve.log" --api-key key-of-line --api-key-file "$tmp/keys" --parallel 2 \
    --slot-save-path "$tmp/slots" --no-metrics
unset TANDEM_API_KEY
cp "$tmp/ready" "$tmp/out"
is event ready
is mtp.active true
is mtp.kind assistant
same "$(value port)" "${url##*:}" "the port"
asks 401 /v1/models
is error.code invalid_api_key
asks 401 /v1/models -H 'Authorization: Bearer wrong'
for key in key-of-file key-of-env key-of-line; do
    asks 200 /v1/models -H "Authorization: Bearer $key"
done
asks 200 /health
asks 404 /metrics -H 'x-api-key: key-of-line'
mv "$tmp/serve.log" "$tmp/serve.log.1"
kill -HUP "$server"
for _ in $(seq 50); do
    [ -s "$tmp/serve.log" ] && break
    sleep 0.1
done
asks 200 /v1/chat/completions -H 'x-api-key: key-of-line' -d "$hello"
asks 200 "/slots/0?action=save" -H 'x-api-key: key-of-line' -d '{"filename":"talk"}'
[ -s "$tmp/slots/talk" ] || fail "no saved conversation"
sleep 0.2
grep -q '"path":"/v1/models"' "$tmp/serve.log.1" || fail "the old log lacks the first requests"
grep -q '"message":"ready' "$tmp/serve.log.1" || fail "the log does not say when the server was ready"
grep -q '"path":"/health"' "$tmp/serve.log.1" && fail "the log is full of probes"
grep -q '"path":"/v1/chat/completions"' "$tmp/serve.log" || fail "the new log lacks the later request"
while read -r line; do
    printf '%s' "$line" >"$tmp/out"
    value time >/dev/null || fail "a line of the log is no JSON with a time: $line"
done <"$tmp/serve.log"
grep -q key-of "$tmp/serve.log" "$tmp/serve.log.1" && fail "a key is in the log"
[ -s "$tmp/log" ] && fail "a log file, and words on stderr: $(cat "$tmp/log")"

# the end: what runs may end, nothing new is taken
curl -s -m 60 -N -H 'Content-Type: application/json' -H 'x-api-key: key-of-line' -o "$tmp/stream" "$url/v1/chat/completions" \
    -d '{"messages":[{"role":"user","content":"Tell"}],"max_tokens":700,"ignore_eos":true,"stream":true,"seed":2}' &
client=$!
for _ in $(seq 100); do
    [ -s "$tmp/stream" ] && break
    sleep 0.05
done
ends TERM 0
wait "$client"
grep -q 'data: \[DONE\]' "$tmp/stream" || fail "the stream was cut off: $(tail -c 300 "$tmp/stream")"
grep -q stopped "$tmp/serve.log" || fail "the log does not say that it stopped"

# no patience: what runs is told
rm "$tmp/stream"
serve --drain-seconds 0
curl -s -m 60 -N -H 'Content-Type: application/json' -o "$tmp/stream" "$url/v1/chat/completions" \
    -d '{"messages":[{"role":"user","content":"Tell"}],"max_tokens":-1,"ignore_eos":true,"stream":true,"seed":2}' &
client=$!
for _ in $(seq 100); do
    [ -s "$tmp/stream" ] && break
    sleep 0.05
done
ends TERM 0
wait "$client"
grep -q '"error"' "$tmp/stream" || fail "the stream ended without a word: $(tail -c 300 "$tmp/stream")"

# command lines that cannot be
run 2 serve --port 70000
says "tandem serve" "--port" "65535"
run 2 serve --log-format yaml
says "text|json"
run 1 serve --port 0 --api-key ""
says "--api-key is empty"
run 1 serve --port 0 --slot-save-path "$tmp/absent"
says "--slot-save-path" "no such directory"
printf '# nothing\n' >"$tmp/keys"
run 1 serve --port 0 --api-key-file "$tmp/keys"
says "no key in it"
run 1 serve --port 0 --log-file "$tmp/absent/log"
says "log file"
run 2 serve --port 0 --quiet --logit-bias x
says "--logit-bias"
run 0 serve --help
grep -q -- --slot-save-path "$tmp/out" || fail "--help does not know --slot-save-path"

pass
