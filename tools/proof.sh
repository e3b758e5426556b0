#!/usr/bin/env bash
# The long run of the tests: a real S3 cluster, long seeds, many more random cases. Called by `tools/test.sh proof`.
#
#   PROOF_MINUTES=120     how long it may take, building not counted; what did not fit is listed, and the run is not
#                         called passed
#   PROOF_TEST_MINUTES=20 how long one test may take, before it is ended and counted as failed
#   PROOF_FACTOR=4        how many times as many cases the tests that name their number run
#   PROPTEST_CASES        how many cases the other random tests run; as many times the usual 256 if it is not given
#   PROOF_FILTER='all()'  which tests, as a nextest filter; with another one the run is never called passed
#
# It goes on where it stopped: what has passed is kept in target/proof/, by the state of the tree and the settings above,
# and is not run again until one of them changes. What failed is run again. `rm -r target/proof` begins again.
#
# Ends with `PROOF PASSED` (0), `PROOF FAILED` (1) or `PROOF UNFINISHED` (3), and the counts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly MINUTES=${PROOF_MINUTES:-120}
readonly TEST_MINUTES=${PROOF_TEST_MINUTES:-20}
readonly FACTOR=${PROOF_FACTOR:-4}
# 256 is what `proptest` runs without a number.
readonly CASES=${PROPTEST_CASES:-$((256 * FACTOR))}
readonly FILTER=${PROOF_FILTER:-all()}

# The state of the tree: the commit, what differs from it, and the files that git does not know yet.
tree_state() {
    {
        git rev-parse HEAD
        git diff HEAD
        git ls-files --others --exclude-standard -z | xargs -0 --no-run-if-empty sha256sum
        rustc --version
        echo "$FACTOR $CASES"
    } | sha256sum | cut -c 1-16
}

# The tests of the run, one `binary test` in each line, without those in the file $1.
list_without() {
    write_config "$1" "$MINUTES"
    cargo nextest list --workspace --locked --profile proof --tool-config-file "proof:$CONFIG" \
        --message-format oneline 2>>"$STATE/list.log"
}

# Writes what nextest is told on top of .config/nextest.toml: the tests in $1 have passed, $2 minutes are left.
# A filter on the command line could become longer than a command line may be.
write_config() {
    awk -v minutes="$2" -v test_minutes="$TEST_MINUTES" -v wanted="$FILTER" '
        { tests[$1] = tests[$1] (tests[$1] == "" ? "" : " | ") "test(=" $2 ")" }
        END {
            for (binary in tests) {
                passed = passed (passed == "" ? "" : " | ") "(binary_id(=" binary ") & (" tests[binary] "))"
            }
            filter = "(" wanted ")" (passed == "" ? "" : " - (" passed ")")
            printf "[profile.proof]\ndefault-filter = '\''%s'\''\nglobal-timeout = \"%dm\"\n", filter, minutes
            printf "slow-timeout = { period = \"1m\", terminate-after = %d }\n", test_minutes
        }' "$1" >"$CONFIG"
}

# Adds what passed in the log $1 to the list of what has; only tests that were to run, and not those that said that they
# cannot run here.
keep_passed() {
    cut -f 1 "$SKIPS" | sort -u >"$STATE/skipped"
    statuses "$1" 'PASS|LEAK' | comm -12 - "$STATE/planned" | comm -23 - "$STATE/skipped" >>"$PASSED"
    sort -u -o "$PASSED" "$PASSED"
}

# The tests with the status $2 in the log $1. A line ends with binary and test: "PASS [ 0.1s] ( 1/10) it a::b". After the
# summary comes what tests have printed, which may look like anything.
statuses() {
    awk -v status="^($2)$" '
        $1 == "Summary" { exit }
        $1 ~ status && $2 ~ /^\[/ { print $(NF - 1), $NF }' "$1" | sort -u
}

run_tests() {
    local log=$STATE/nextest-$(date +%s).log remaining
    list_without "$PASSED" | sort -u >"$STATE/planned"
    remaining=$(wc -l <"$STATE/planned")
    echo "$(wc -l <"$PASSED") tests have passed before, $remaining are left, $MINUTES minutes"
    [[ $remaining -gt 0 ]] || return 0
    # The signals of a terminal end nextest, and what passed until then is kept.
    cargo nextest run --workspace --locked --profile proof --tool-config-file "proof:$CONFIG" \
        --no-fail-fast 2>&1 | tee "$log" || true
    keep_passed "$log"
    statuses "$log" 'FAIL|TIMEOUT|SIGABRT|SIGSEGV|LEAK-FAIL' >"$STATE/failed"
}

run_doc_tests() {
    [[ ! -e $STATE/doc-tests ]] || return 0
    timeout "${TEST_MINUTES}m" cargo test --doc --workspace --locked --no-fail-fast || return 1
    touch "$STATE/doc-tests"
}

report() {
    local failed left
    list_without "$PASSED" | sort -u >"$STATE/left"
    touch "$STATE/failed"
    comm -12 "$STATE/left" "$STATE/failed" >"$STATE/failed.now"
    comm -23 "$STATE/left" "$STATE/failed.now" | comm -23 - "$STATE/skipped" >"$STATE/not-run"
    failed=$(wc -l <"$STATE/failed.now")
    left=$(wc -l <"$STATE/not-run")
    printf '\n== proof of %s\n' "$(git rev-parse --short HEAD) ($KEY)"
    [[ $FILTER == 'all()' ]] || echo "only these tests: $FILTER"
    sed 's/^/failed:  /' "$STATE/failed.now"
    sed 's/^/skipped: /' "$STATE/skipped"
    sed 's/^/not run: /' "$STATE/not-run"
    [[ $DOC_TESTS == passed ]] || echo "doc tests: $DOC_TESTS"
    echo "$(wc -l <"$PASSED") passed, $failed failed, $(wc -l <"$STATE/skipped") skipped, $left not run"
    if [[ $failed -gt 0 || $DOC_TESTS != passed ]]; then
        echo "PROOF FAILED, see $STATE"
        return 1
    fi
    if [[ $left -gt 0 || -s $STATE/skipped ]]; then
        echo "PROOF UNFINISHED: run it again to go on, see $STATE"
        return 3
    fi
    if [[ $FILTER != 'all()' ]]; then
        echo "PROOF UNFINISHED: these tests have passed, others were not asked for"
        return 3
    fi
    echo "PROOF PASSED"
}

KEY=$(tree_state)
readonly KEY STATE=$PWD/target/proof/$KEY
readonly PASSED=$STATE/passed CONFIG=$STATE/nextest.toml SKIPS=$STATE/skips
mkdir -p "$STATE"
touch "$PASSED" "$STATE/skipped"
: >"$SKIPS"
export LOGMILL_SKIPS=$SKIPS LOGMILL_PROOF=$FACTOR PROPTEST_CASES=$CASES
# Built before the time runs.
cargo nextest run --workspace --locked --profile proof --no-run
run_tests
if run_doc_tests; then DOC_TESTS=passed; else DOC_TESTS=failed; fi
report
