#!/usr/bin/env bash
# tandem bench: every subcommand's report has what it promises, in every form; nothing here is timed.
# shellcheck source=tests/cli/support.sh
. "$2/tests/cli/support.sh"

# one column of a table of the JSON in $tmp/out, its values on one line
column() { # column TABLE KEY
    local i n list=
    n=$("$json_get" "$tmp/out" "tables.$1" --len) || fail "no table $1 in $(cat "$tmp/out")"
    for ((i = 0; i < n; i++)); do
        list="$list $(value "tables.$1.$i.$2")"
    done
    echo "${list# }"
}

# --- kernels: rows and their cost, drafts, a prompt, the memory's rate
run 0 bench kernels --rows 1,2,4 --repeats 2 --prompt 32 --contexts 20 --format json -q
is command "tandem bench kernels"
same "$(column rows rows)" "1 2 4" "rows"
same "$(column rows context)" "20 20 20" "contexts"
same "$(column prompt tokens)" "32" "tokens of the prompt"
same "$(column drafts drafts)" "4" "drafts"
for field in memory_gb_per_s weights_mb_a_row tables.rows.0.gb_per_s tables.rows.2.over_one; do
    value $field >/dev/null || fail "no $field in $(cat "$tmp/out")"
done
run 0 bench kernels --rows 1-16 --repeats 1 --prompt 16 --contexts 20 --no-mtp --format json -q
same "$(column rows rows)" "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16" "rows without a drafter"

# --- mtp: every class, each depth beside plain, the same texts
run 0 bench mtp -n 12 -r 1 --format json -q
same "$(column mtp class)" "code prose json translation maths review" "classes"
same "$(column mtp identical)" "true true true true true true" "the texts of all classes"
is identical true
run 0 bench mtp -n 12 -r 2 --class prose --contexts 40,300 --depths 0,2,auto --temp 0.8 --seed 3 --format json -q
same "$(column mtp depth)" "0 2 auto 0 2 auto" "depths"
same "$(column mtp context)" "40 40 40 300 300 300" "contexts"
same "$(column mtp identical)" "true true true true true true" "sampled texts"
is repeats 2
n=$(value tables.mtp.3.prompt_tokens)
if [ "$n" -lt 240 ] || [ "$n" -gt 360 ]; then fail "a prompt of about 300 tokens has $n"; fi
same "$(value tables.mtp.0.accepted)" "null" "acceptance at depth 0"

# --- streams
run 0 bench streams --streams 1,3 -n 24 -r 1 --context 30 --mixed --format json -q
same "$(column streams streams)" "1 1 3 3" "streams"
same "$(column streams way)" "plain drafted plain drafted" "ways"
is identical true

# --- synthetic models and forced acceptance: refused where answers are read
run 0 bench synth --shape e2b --layers 5 --vocab 2048 --format affine4 -q "$tmp/e2b"
run 0 bench synth --shape e2b-assistant --vocab 2048 --format affine4 -q "$tmp/e2b-assistant"
run 0 bench mtp --model "$tmp/e2b" --mtp-assistant-model "$tmp/e2b-assistant" --class code -n 8 -r 1 --contexts 16 \
    --forced-acceptance 1,1 --depths 2 --format json -q
same "$(column mtp accepted)" "100% 100%" "forced acceptance"
same "$(column mtp identical)" "null" "texts that mean nothing"
run 1 bench synth --shape e2b --layers 5 --vocab 2048 --format affine4 -q "$tmp/e2b"
says "$tmp/e2b"
run 1 bench synth --shape e9b -q "$tmp/none.gguf"
says 'no shape "e9b"' e2b qwen-2b
for command in run chat serve demo; do
    run 2 $command --forced-acceptance 0.5
    says "unknown option --forced-acceptance"
done

# --- forms, files, a plot
run 0 bench mtp -n 8 -r 1 --class maths --contexts 40 --format csv -q
grep -q '^table,class,context,prompt_tokens,depth,' "$tmp/out" || fail "no header in $(cat "$tmp/out")"
grep -q '^mtp,maths,40,' "$tmp/out" || fail "no row in $(cat "$tmp/out")"
run 0 bench mtp -n 8 -r 1 --class maths --contexts 40 --format md --out "$tmp/report.md" -q
[ -s "$tmp/out" ] && fail "--out and something on stdout"
grep -q '^| maths ' "$tmp/report.md" || fail "no row in $(cat "$tmp/report.md")"
run 0 bench mtp -n 8 -r 1 --class maths --contexts 40 -q
grep -q 'tok/s' "$tmp/out" || fail "no table in $(cat "$tmp/out")"
if command -v gnuplot >/dev/null; then
    run 0 bench kernels --rows 1,2 --repeats 1 --prompt 16 --contexts 20 --plot "$tmp/rows.svg" -q
    grep -q '<svg' "$tmp/rows.svg" || fail "no SVG in rows.svg"
else
    run 1 bench kernels --rows 1,2 --repeats 1 --prompt 16 --contexts 20 --plot "$tmp/rows.svg" -q
    says gnuplot "not installed"
fi

# --- a server, driven over loopback
"$tandem" serve --port 0 --parallel 2 -c 2048 --mtp-fixed --num-mtp-tokens 2 >"$tmp/ready" 2>"$tmp/log" </dev/null &
server=$!
trap 'kill -9 $server 2>/dev/null; rm -rf "$tmp"' EXIT
for _ in $(seq 300); do
    [ -s "$tmp/ready" ] && break
    kill -0 $server 2>/dev/null || fail "the server ended: $(cat "$tmp/log")"
    sleep 0.1
done
url=$(grep -o 'http://127\.0\.0\.1:[0-9]*' "$tmp/ready") || fail "no address in: $(cat "$tmp/ready")"
run 0 bench serve --concurrency 1,2 --requests 3 -n 8 --prompt 60 --contexts 80,160 --format json -q "$url/v1/"
is served_model gemma4-demo-4bit
same "$(column load concurrency)" "1 2" "requests in flight"
same "$(column load requests)" "3 3" "requests"
same "$(column load failed)" "0 0" "failed requests"
same "$(column cache turn)" "first second another first" "turns"
[ "$(value tables.cache.1.cached_tokens)" -gt 100 ] || fail "the second turn found nothing: $(cat "$tmp/out")"
column memory metric | grep -q tandem_kv_bytes || fail "no memory in $(cat "$tmp/out")"
kill $server
wait $server 2>/dev/null
run 1 bench serve -q "$url"
says "$url"
run 1 bench serve -q not-a-url
says "not-a-url" "no URL"

# --- usage
run 0 bench --help
run 2 bench
says kernels mtp streams serve synth
run 2 bench kernel
says "did you mean 'kernels'"
run 2 bench mtp --class poetry
says poetry maths
run 2 bench mtp --depths 3-1
says "--depths" "0-8"
run 2 bench mtp --depths 0-99
says "--depths"
run 2 bench mtp --forced-acceptance 0.5,0.6
says "--forced-acceptance" "do not grow"
run 2 bench synth "$tmp/x"
says "--shape"
pass
