# shellcheck shell=bash disable=SC2034
# Helpers of the shell tests: sourced with the binary as $1 and the repository root as $2. A test calls `pass` at its
# end; any failed expectation prints what was run and what came, and ends the test.
set -u
tandem=$1
root=$2
json_get=${TD_JSON:?TD_JSON must name the json_get program}
vectors=$root/tests/fixtures/vectors
trunk=$root/models/gemma4-demo-4bit
assistant=$root/models/gemma4-demo-assistant-4bit
tmp=$(mktemp -d "${TMPDIR:-/tmp}/tandem-cli-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
export NO_COLOR=1
unset HF_HUB_CACHE HF_HOME XDG_CACHE_HOME HF_TOKEN HF_ENDPOINT
export HF_HUB_OFFLINE=1 # ids of the tests are not asked for anywhere
export HOME=$tmp # no hub cache of the user's

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

pass() {
    echo "passed: $checks expectations"
    exit 0
}
checks=0

# run CODE ARGUMENT...: runs tandem, expects the exit code; its output is in $tmp/out and $tmp/err.
run() {
    local want=$1 got
    shift
    "$tandem" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    checks=$((checks + 1))
    [ "$got" = "$want" ] && return 0
    echo "tandem $* -> $got, expected $want" >&2
    sed 's/^/  out: /' "$tmp/out" >&2
    sed 's/^/  err: /' "$tmp/err" >&2
    exit 1
}

# says WORDS...: the error is exactly one line and contains each of the words.
says() {
    local word
    checks=$((checks + 1))
    [ "$(wc -l <"$tmp/err")" = 1 ] || fail "not one line on stderr: $(cat "$tmp/err")"
    for word in "$@"; do
        grep -qF -- "$word" "$tmp/err" || fail "'$word' is not in: $(cat "$tmp/err")"
    done
}

# value PATH: out of the JSON in $tmp/out.
value() {
    "$json_get" "$tmp/out" "$1"
}

# is PATH VALUE: expects it there.
is() {
    local got
    checks=$((checks + 1))
    got=$(value "$1") || fail "no $1 in: $(cat "$tmp/out")"
    [ "$got" = "$2" ] || fail "$1 is '$got', expected '$2' in: $(cat "$tmp/out")"
}

# same A B WHAT
same() {
    checks=$((checks + 1))
    [ "$1" = "$2" ] || fail "$3: '$1' against '$2'"
}

