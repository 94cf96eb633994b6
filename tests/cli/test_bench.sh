#!/usr/bin/env bash
# tandem bench: every subcommand's report has what it promises, in every form; nothing here is timed,
# but for the end after Ctrl-C.
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

# table NAME of the CSV in $tmp/out: its lines
csv() {
    grep "^$1," "$tmp/out"
}

# interrupted SECONDS ARGUMENT...: Ctrl-C after so many seconds; the end comes soon, whatever was under way
interrupted() {
    local seconds=$1 pid got began
    shift
    "$tandem" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
    sleep "$seconds"
    kill -INT $pid || fail "tandem $* had ended already: $(cat "$tmp/err")"
    began=$SECONDS
    wait $pid
    got=$?
    same "$got" 130 "exit code of an interrupted tandem $*"
    says "interrupted"
    [ $((SECONDS - began)) -le 20 ] || fail "tandem $* went on for $((SECONDS - began)) seconds"
}

# --- kernels: rows and their cost, drafts, a prompt, the memory's rate
run 0 bench kernels --rows 1,2,4 --repeats 2 --prompt 32 --contexts 20 --format json -q
is command "tandem bench kernels"
same "$(column rows rows)" "1 2 4" "rows"
same "$(column rows context)" "20 20 20" "contexts"
same "$(column prompt tokens)" "32" "tokens of the prompt"
same "$(column drafts drafts)" "4" "drafts"
[ "$(value tables.drafts.0.made)" != 0.0 ] || fail "no draft was made"
for field in memory_gb_per_s weights_mb_a_row tables.rows.0.gb_per_s tables.rows.2.over_one; do
    value $field >/dev/null || fail "no $field in $(cat "$tmp/out")"
done
run 0 bench kernels --rows 1-16 --repeats 1 --prompt 16 --contexts 20 --no-mtp --format json -q
same "$(column rows rows)" "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16" "rows without a drafter"
run 0 bench kernels --rows 16,3 --num-mtp-tokens 2 --repeats 1 --prompt 16 --contexts 20,400 --format json -q
same "$(column rows rows)" "16 3 16 3" "rows beyond the drafts asked for, and no row of one"
same "$(column drafts drafts)" "2 2" "drafts asked for"
for row in 0 1 2 3; do
    value tables.rows.$row.over_one | grep -q '[1-9]' || fail "row $row is not compared with one row: $(cat "$tmp/out")"
done
awk -v short="$(value tables.rows.0.read_mb)" -v long="$(value tables.rows.2.read_mb)" \
    'BEGIN { exit !(long > short + 0.1) }' || fail "keys and values are not counted: $(cat "$tmp/out")"
run 1 bench kernels --rows 1,2 --repeats 1 --prompt 16 --contexts 20,4000 -c 600 --format json -q
says "a prompt of 4000 tokens in a context of 600"
same "$(column rows rows)" "1 2" "rows measured before a failure"
is complete false
grep -q '"ended at rows at 4000 tokens: a prompt' "$tmp/out" || fail "no word of the end in $(cat "$tmp/out")"

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
same "$("$json_get" "$tmp/out" tables.mtp.0.drafted_at --len)" 0 "positions drafted at, at depth 0"
same "$("$json_get" "$tmp/out" tables.mtp.1.drafted_at --len)" 2 "positions drafted at, at depth 2"
same "$("$json_get" "$tmp/out" tables.mtp.1.accepted_at --len)" 2 "positions accepted at, at depth 2"

# --- mtp: a depth is what its row is called by
one=(bench mtp --class maths --contexts 40 -n 8 -r 1 -q)
run 2 "${one[@]}" --num-mtp-tokens 4 --depths 0-8
says "--depths" 8 "--num-mtp-tokens" 4
run 2 "${one[@]}" --num-mtp-tokens 4 --mtp-fixed --depths 2,auto
says "--depths" auto "--mtp-fixed"
run 2 "${one[@]}" --no-mtp --depths 1
says "--no-mtp"
run 1 "${one[@]}" --model "$trunk" --depths 0,3
says "3 drafts a round" "nothing drafts"
run 0 "${one[@]}" --model "$trunk" --format json
value notes.0 | grep -q "^no drafts: " || fail "not said that nothing drafts: $(cat "$tmp/out")"
run 0 "${one[@]}" --num-mtp-tokens 3 --mtp-fixed --format json
same "$(column mtp depth)" "3" "the depth of --mtp-fixed"
run 0 "${one[@]}" --depths 12,auto --format json
same "$(column mtp depth)" "12 auto" "depths beyond auto's"
is auto_limit 8
run 0 "${one[@]}" --num-mtp-tokens 3 --depths auto --format json
is auto_limit 3

# --- mtp: contexts that do not fit are left out, by the engine's own plan; sliding windows do not grow
run 0 bench mtp --class maths -n 8 -r 1 --contexts 40,4000,60000 --memory-limit-mb 42 --format json -q
same "$(column mtp context)" "40 4000" "contexts that fit"
value notes.0 | grep -q "60000 is left out: it needs [67][0-9] MiB, and 42 MiB" || fail "notes: $(cat "$tmp/out")"
run 1 bench mtp --class maths -n 8 -r 1 --contexts 50000,60000 --memory-limit-mb 42 -q
says "42 MiB are allowed"
run 1 bench mtp --class maths -n 8 -r 1 --contexts 60000 --memory-limit-mb 42 -q
says "42 MiB are allowed"
run 0 bench mtp --class maths -n 8 -r 1 --contexts 40,4000 -c 600 --format json -q
same "$(column mtp context)" "40" "contexts within --ctx-size"
value notes.0 | grep -q "4000 is left out: --ctx-size" || fail "notes: $(cat "$tmp/out")"
run 2 bench mtp --class maths -n 8 -r 1 --contexts 4000 -c 600 -q
says "--ctx-size" 4000

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
for at in 0 1; do
    accepted=$(value tables.mtp.0.accepted_at.$at)
    [ "$accepted" -gt 0 ] || fail "nothing accepted: $(cat "$tmp/out")"
    same "$accepted" "$(value tables.mtp.0.drafted_at.$at)" "forced acceptance"
done
same "$(column mtp identical)" "null" "texts that mean nothing"
run 1 bench synth --shape e2b --layers 5 --vocab 2048 --format affine4 -q "$tmp/e2b"
says "$tmp/e2b"
run 0 bench synth --shape e2b --layers 5 --vocab 2048 -q "$tmp/e2b.gguf"
for model in "$tmp/e2b" "$tmp/e2b.gguf"; do
    run 0 inspect --json "$model"
    is synthetic true
    run 0 run --model "$model" --prompt-ids 5,6 -n 2 -c 64
    [ "$(grep -c "warning: the model's weights are random" "$tmp/err")" = 1 ] || fail "no warning: $(cat "$tmp/err")"
    run 1 serve --port 0 --model "$model" -c 64
    grep -q "random weights.*--allow-synthetic" "$tmp/err" || fail "no refusal: $(cat "$tmp/err")"
done
run 0 run --prompt-ids 5,6 -n 2 -c 64
! grep -q random "$tmp/err" || fail "the embedded pair is not random: $(cat "$tmp/err")"
"$tandem" serve --port 0 --model "$tmp/e2b.gguf" -c 64 --allow-synthetic >"$tmp/ready" 2>"$tmp/log" </dev/null &
server=$!
for _ in $(seq 300); do
    [ -s "$tmp/ready" ] && break
    kill -0 $server 2>/dev/null || fail "the server ended: $(cat "$tmp/log")"
    sleep 0.1
done
grep -q "weights are random" "$tmp/log" || fail "no warning in the log: $(cat "$tmp/log")"
kill $server
wait $server 2>/dev/null
run 1 bench synth --shape e9b -q "$tmp/none.gguf"
says 'no shape "e9b"' e2b qwen-2b
for command in run chat serve demo; do
    run 2 $command --forced-acceptance 0.5
    says "unknown option --forced-acceptance"
done

# --- forms and files
run 0 bench mtp -n 8 -r 1 --class maths --contexts 40 --depths 2 --format csv -q
grep -q '^table,class,context,prompt_tokens,depth,.*,accepted_at,drafted_at,' "$tmp/out" || fail "no header in $(cat "$tmp/out")"
csv mtp | grep -q '^mtp,maths,40,[0-9]*,2,8,[0-9.]*,[0-9]* [0-9]*,[0-9]* [0-9]*,' || fail "no row in $(cat "$tmp/out")"
grep -q '^# drafter: assistant$' "$tmp/out" || fail "no facts in $(cat "$tmp/out")"
run 0 "${one[@]}" --out "$tmp/report.md" --out "$tmp/report.csv" --out "$tmp/report.json" --out "$tmp/report"
[ -s "$tmp/out" ] && fail "--out and something on stdout"
grep -q '^| maths ' "$tmp/report.md" || fail "no row in $(cat "$tmp/report.md")"
grep -q '^mtp,maths,40,' "$tmp/report.csv" || fail "no row in $(cat "$tmp/report.csv")"
same "$("$json_get" "$tmp/report.json" tables.mtp.0.class)" maths "class in the JSON file"
grep -q '^  maths ' "$tmp/report" || fail "no text in $(cat "$tmp/report")"
run 0 "${one[@]}" --out "$tmp/report.csv" --format json
same "$("$json_get" "$tmp/report.csv" tables.mtp.0.class)" maths "class in a file whose form was chosen"
run 0 "${one[@]}"
grep -q 'tok/s' "$tmp/out" || fail "no table in $(cat "$tmp/out")"
run 2 "${one[@]}" --out "$tmp/report.xls"
says report.xls .json
run 2 "${one[@]}" --out "$tmp/a.md" --out "$tmp/a.md"
says a.md twice
for command in mtp kernels streams; do
    run 1 bench $command --out "$tmp/none/report.md" -q
    says "none/report.md" "cannot write"
done
run 1 "${one[@]}" --out /dev/full --format csv # found out at the end: the result is not lost
says /dev/full "standard output"
csv mtp | grep -q '^mtp,maths,40,' || fail "no row in $(cat "$tmp/out")"

# --- plots. A gnuplot of our own keeps the script.
mkdir "$tmp/bin"
cat >"$tmp/bin/gnuplot" <<EOF
#!/bin/sh
while IFS= read -r line; do printf '%s\\n' "\$line"; done >"$tmp/script"
printf 'begun' >"$tmp/plot.svg"
exit \${GNUPLOT_RC:-0}
EOF
chmod +x "$tmp/bin/gnuplot"
lines() { # the titles of the lines drawn, on one line
    grep '^plot ' "$tmp/script" | grep -o "title '[^']*'" | cut -d"'" -f2 | paste -sd, -
}
plotted=(bench mtp --class code --class prose -n 8 -r 1 --plot "$tmp/plot.svg" -q)
PATH=$tmp/bin run 0 "${plotted[@]}" --contexts 40
same "$(lines)" "auto" "lines of auto alone"
grep -q "^set xtics ('code' 0, 'prose' 1)" "$tmp/script" || fail "no classes on the axis: $(cat "$tmp/script")"
PATH=$tmp/bin run 0 "${plotted[@]}" --contexts 40,300 --depths 2,auto
same "$(lines)" "code 2,code auto,prose 2,prose auto" "lines over contexts, one a class and depth"
same "$(grep -cE '^(40|300) [0-9.]+$' "$tmp/script")" 8 "points over contexts"
PATH=$tmp/bin run 0 "${plotted[@]}" --contexts 40 --depths 0-2,auto
same "$(lines)" "code,code auto,prose,prose auto" "lines over depths"
same "$(grep -o 'dashtype' "$tmp/script" | wc -l)" 2 "levels of auto"
GNUPLOT_RC=1 PATH=$tmp/bin run 1 "${plotted[@]}" --contexts 40 --format csv
says "gnuplot failed" plot.svg
csv mtp | grep -q '^mtp,code,40,' || fail "no row in $(cat "$tmp/out")"
[ -e "$tmp/plot.svg" ] && fail "a plot that failed is still there"
rm "$tmp/bin/gnuplot"
for command in mtp kernels streams; do # without gnuplot: said before anything is measured
    PATH=$tmp/bin run 1 bench $command --plot "$tmp/plot.svg" --out "$tmp/never.md" -q
    says gnuplot "not installed"
    [ -e "$tmp/never.md" ] && fail "measured for a plot that cannot be drawn"
done
if command -v gnuplot >/dev/null; then
    run 0 bench kernels --rows 2,4 --repeats 1 --prompt 16 --contexts 20 --plot "$tmp/rows.svg" -q
    run 0 bench streams --streams 1,2 -n 12 -r 1 --context 30 --plot "$tmp/streams.svg" -q
    run 0 "${plotted[@]}" --contexts 40 --plot "$tmp/auto.svg"
    run 0 "${plotted[@]}" --contexts 40,300 --depths 2,auto --plot "$tmp/contexts.svg"
    run 0 "${plotted[@]}" --contexts 40 --depths 0-2,auto --plot "$tmp/depths.svg"
    for plot in rows streams auto contexts depths; do
        grep -q '</svg>' "$tmp/$plot.svg" || fail "no SVG in $plot.svg"
    done
    run 1 "${plotted[@]}" --contexts 40 --plot "$tmp/none/plot.svg"
    says "none/plot.svg" "cannot write"
fi

# --- Ctrl-C: in a long answer, in a long prompt; what was measured before is reported
interrupted 2 bench mtp --class prose -n 200000 -c 220000 --contexts 40 -r 1 -q
interrupted 2 bench kernels --contexts 400000 --rows 1 -q
interrupted 2 bench streams --streams 2 -n 200000 --context 40 -c 220000 -q
for seconds in 2 6 20; do # a slow machine needs longer for its first row
    interrupted $seconds bench mtp -n 100 -r 9 --contexts 40,41,42,43,44 --depths 0-16 --format json -q
    [ -s "$tmp/out" ] && break
done
is complete false
is tables.mtp.0.depth 0
grep -q 'ended at [a-z]* at 4[0-4] tokens, depth [0-9]*: interrupted' "$tmp/out" || fail "no end in $(cat "$tmp/out")"

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
column memory difference | grep -q '[1-9]' || fail "no memory is for the context in $(cat "$tmp/out")"
value bytes_per_token | grep -q '^[2-5]\.' || fail "a token of $(value bytes_per_token) bytes"
n=$(value tables.load.1.prompt_tokens | cut -d. -f1)
if [ "$n" -lt 40 ] || [ "$n" -gt 90 ]; then fail "prompts of about 60 tokens have $n"; fi

# --- no run meets the prompts of the one before, unless it is told to; drafted and plain arms
quick=(bench serve --concurrency 2 --requests 6 -n 8 --prompt 100 --no-cache-test --format json -q "$url")
cached() {
    value tables.load.0.cached_tokens | cut -d. -f1
}
run 0 "${quick[@]}"
run 0 "${quick[@]}"
[ "$(cached)" -lt 25 ] || fail "the second run found the first one's prompts: $(cat "$tmp/out")"
run 0 "${quick[@]}" --seed 7
run 0 "${quick[@]}" --seed 7
is seed 7
[ "$(cached)" -gt 60 ] || fail "the same seed is not the same prompts: $(cat "$tmp/out")"
run 0 "${quick[@]}" --compare-mtp
same "$(column load way)" "drafted plain" "arms"
same "$(value tables.load.1.tokens_per_round | cut -c1-3)" "1.0" "tokens a round without drafts"
value tables.compare.0.ratio >/dev/null || fail "no ratio in $(cat "$tmp/out")"
if command -v gnuplot >/dev/null; then
    run 0 bench serve --concurrency 1,2 --requests 2 -n 4 --prompt 20 --no-cache-test --plot "$tmp/load.svg" -q "$url"
    grep -q '<svg' "$tmp/load.svg" || fail "no SVG in load.svg"
fi
run 1 bench serve -q "$url/llm/v1"
says "$url/llm/v1/models" 404
kill $server
wait $server 2>/dev/null
run 1 bench serve -q "$url"
says "$url"
run 1 bench serve -q not-a-url
says "not-a-url" "no URL"
run 2 bench serve --concurrency 1,4 --requests 3 -q "$url"
says "--requests" "4 in flight"

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
run 2 bench streams --context 40,80
says "--context" "a whole number from 16"
run 2 bench mtp --forced-acceptance 0.5,0.6
says "--forced-acceptance" "do not grow"
run 2 bench synth "$tmp/x"
says "--shape"
pass
