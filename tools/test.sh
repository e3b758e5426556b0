#!/usr/bin/env bash
# Runs the checks of the tree: `tools/test.sh test | lint | proof`. See the Makefile.
#
# Cheap checks come first, and a failed one stops the run. Tests all run, whatever fails; the last line is
# `N passed, N failed, N skipped`, counted from what nextest and the doc tests printed. A test that can not run
# here appends a line to the file named by LOGMILL_SKIPS (`logmill_sim::skip`), and counts as skipped instead
# of passed. With CI=true a skip is a failure, unless its reason starts with `proof:`, which means that
# `make proof` runs that test. Logs are kept in target/test/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly LOGS=$PWD/target/test
readonly SKIPS=$LOGS/skips.txt
# What servers, databases and nodes of the tests write at the same time, with room to spare.
readonly FREE_MIB_MIN=2048

# The counts are read from logs, where colours would be in the way.
export CARGO_TERM_COLOR=never

# What serves the next build is of no use to a run that has none: 4 GB less on the disk.
if [[ ${CI:-} == true ]]; then
    export CARGO_INCREMENTAL=0
fi

step() {
    printf '\n== %s\n' "$*"
}

# Stops a run that would end with strange failures: a full disk makes servers unready and databases fail.
check_disk() {
    local free_mib
    free_mib=$(df --output=avail -BM . | tail -n 1 | tr -dc 0-9)
    if [[ $free_mib -lt $FREE_MIB_MIN ]]; then
        echo "the disk of $PWD has $free_mib MiB left; the tests need $FREE_MIB_MIN MiB" >&2
        exit 1
    fi
}

# Runs a command, shows its output, and keeps it as NAME.log.
logged() {
    local name=$1
    shift
    "$@" 2>&1 | tee "$LOGS/$name.log"
}

install_tools() {
    step "tools"
    tools/rust.sh
    tools/python.sh
    if [[ $1 != lint ]]; then
        tools/postgres.sh
        tools/node.sh
    fi
}

lint() {
    step "formatting"
    cargo fmt --all --check
    step "spelling"
    .tools/venv/bin/typos
    step "clippy"
    logged clippy cargo clippy --workspace --all-targets --locked -- -D warnings
}

docs() {
    step "docs"
    RUSTDOCFLAGS="-D warnings" logged doc cargo doc --no-deps --workspace --locked
}

# Sums the numbers that stand before WORD in the lines of FILE that contain MARK.
count() {
    local file=$1 mark=$2 word=$3
    { grep -F "$mark" "$file" || true; } | { grep -oE "[0-9]+ ($word)" || true; } |
        awk '{ sum += $1 } END { print sum + 0 }'
}

# Where random tests begin: one commit has one seed, so that what passed once passes again, and the next commit tries other
# cases. `make proof` takes new ones each time.
seed() {
    local commit
    commit=$(git rev-parse HEAD 2>/dev/null) || commit=0
    echo "$((16#${commit:0:15}))"
}

# Runs all tests, then the doc tests, then prints the counts.
run_tests() {
    local failed_run=0
    rm -f "$SKIPS"
    touch "$SKIPS"
    export LOGMILL_SKIPS=$SKIPS
    PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-$(seed)}
    export PROPTEST_RNG_SEED

    check_disk
    step "tests (random ones from PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED)"
    logged nextest cargo nextest run --workspace --locked || failed_run=1
    step "doc tests"
    logged doctest cargo test --doc --workspace --locked --no-fail-fast || failed_run=1
    docs || failed_run=1
    report "$failed_run"
}

# Says whether known advisories were looked for. A copy of the database cannot be had everywhere, and one that is missing
# is no test that was skipped: this line is how it is known.
say_advisories() {
    local database=${LOGMILL_ADVISORY_DB:-$HOME/.cargo/advisory-db}
    if [[ -d $database/crates ]]; then
        echo "advisories: checked against $database"
    else
        echo "advisories: not checked, as there is no copy of RustSec's database at $database"
        echo "  (git clone https://github.com/rustsec/advisory-db $database, or set LOGMILL_ADVISORY_DB)"
    fi
}

# Prints what was skipped, and the counts as the last line. Fails when the run does.
report() {
    local outcome=$1
    local unit=$LOGS/nextest.log doc=$LOGS/doctest.log
    local passed failed skipped said_skipped
    passed=$(($(count "$unit" 'Summary [' passed) + $(count "$doc" 'test result:' passed)))
    failed=$(($(count "$unit" 'Summary [' 'failed|exec failed|timed out') +
        $(count "$doc" 'test result:' failed)))
    skipped=$(($(count "$unit" 'Summary [' skipped) + $(count "$doc" 'test result:' ignored)))
    # A test that skipped several things is still one test, and nextest saw it pass.
    said_skipped=$(cut -f1 "$SKIPS" | sort -u | wc -l)
    passed=$((passed - said_skipped))
    skipped=$((skipped + said_skipped))

    step "counts"
    say_advisories
    sort -u "$SKIPS" | awk -F '\t' '{ printf "skipped: %s: %s\n", $1, $2 }'
    if [[ ${CI:-} == true ]] && ! skips_are_allowed "$((skipped - said_skipped))"; then
        echo "a test was skipped, which CI does not allow"
        outcome=1
    fi
    if [[ $failed -gt 0 || $passed -le 0 ]]; then
        outcome=1
    fi
    if [[ $outcome -ne 0 ]]; then
        echo "FAILED, see $LOGS"
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
    return "$outcome"
}

# Whether CI may accept what was skipped: $1 tests by the runner, the others in the file of skips.
skips_are_allowed() {
    local by_runner=$1
    if [[ $by_runner -gt 0 ]]; then
        return 1
    fi
    # No line has a reason that starts otherwise.
    [[ $(cut -f2- "$SKIPS" | grep -cv '^proof:') -eq 0 ]]
}

# Starts Ceph, and has it stopped when this script ends.
start_ceph() {
    step "ceph"
    # Into a log: the counts stay the last line.
    trap 'tools/ceph.sh stop >"$LOGS/ceph-stop.log" 2>&1' EXIT
    # A file, not a pipe: the servers keep the script's output open.
    tools/ceph.sh start >"$LOGS/ceph.env"
    LOGMILL_PROOF_S3=$(tail -n 1 "$LOGS/ceph.env" | sed 's/^LOGMILL_PROOF_S3=//')
    if [[ -z $LOGMILL_PROOF_S3 ]]; then
        echo "tools/ceph.sh did not say where its S3 is" >&2
        exit 1
    fi
    export LOGMILL_PROOF_S3
}

mkdir -p "$LOGS"
case ${1:-} in
    lint)
        install_tools lint
        lint
        ;;
    test)
        install_tools test
        lint
        run_tests
        ;;
    proof)
        install_tools proof
        start_ceph
        tools/proof.sh
        ;;
    *)
        echo "usage: tools/test.sh test | lint | proof" >&2
        exit 2
        ;;
esac
