//! `tools/proof.sh` with a fake Cargo: what it runs, what it remembers, and what it counts as passed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use logmill_sim::workspace_root;

/// Cargo as far as the script uses it. The tests are `a`, `b` and `c` of the binary `it`, without those that the
/// script's config names as passed; `PASS` and `FAIL` say which of them end how, and others do not fit into the time.
const CARGO: &str = r#"#!/usr/bin/env bash
config=/dev/null
for word in "$@"; do
    case $word in proof:*) config=${word#proof:} ;; esac
done
left() { for test in a b c; do grep -q "test(=$test)" "$config" || echo "$test"; done; }
case "$1 $2 $*" in
"nextest list "*) left | sed 's/^/it /' ;;
"nextest run "*--no-run*) ;;
"nextest run "*)
    for test in $(left); do
        case " $PASS " in *" $test "*) echo "$test" >>ran; echo "        PASS [   0.1s] (1/3) it $test" ;; esac
        case " $FAIL " in *" $test "*) echo "$test" >>ran; echo "        FAIL [   0.1s] (1/3) it $test" ;; esac
        case " $SKIP " in *" $test "*) printf 'it %s\tno server\n' "$test" >>"$LOGMILL_SKIPS" ;; esac
    done
    echo "     Summary [   0.3s] 3 tests run"
    # What a test printed, which is shown again after the run.
    if [[ -n $FAIL ]]; then echo "        PASS [   0.1s] (1/1) strange x"; echo "        PASS [   0.1s] (1/3) it c"; fi
    [[ -z $FAIL ]]
    ;;
"test --doc "*) ;;
esac
"#;

/// A separate source tree with the script.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().expect("a folder"));
        fs::create_dir(tree.path().join("tools")).expect("made");
        fs::create_dir(tree.path().join("bin")).expect("made");
        let script = workspace_root().join("tools/proof.sh");
        fs::copy(script, tree.path().join("tools/proof.sh")).expect("copied");
        fs::write(tree.path().join("bin/cargo"), CARGO).expect("written");
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(tree.path().join("bin/cargo"), all).expect("it can be run");
        fs::write(tree.path().join(".gitignore"), "target\nran\n").expect("written");
        tree.git(&["init", "--quiet"]);
        tree.git(&["add", "."]);
        let name = ["-c", "user.name=n", "-c", "user.email=e@example.org"];
        tree.git(&[&name[..], &["commit", "--quiet", "--message", "m"]].concat());
        tree
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn git(&self, args: &[&str]) {
        let done = Command::new("git").args(args).current_dir(self.path()).status();
        assert!(done.expect("git runs").success(), "{args:?}");
    }

    /// Runs the script with these tests passing, failing and skipping; returns its exit code and the tests that ran.
    fn proof(&self, pass: &str, fail: &str, skip: &str) -> (i32, String, String) {
        let _ = fs::remove_file(self.path().join("ran"));
        let path = std::env::var("PATH").expect("a path");
        let path = format!("{}:{path}", self.path().join("bin").display());
        let output = Command::new("bash")
            .arg("tools/proof.sh")
            .current_dir(self.path())
            .env("PATH", path)
            .envs([("PASS", pass), ("FAIL", fail), ("SKIP", skip)])
            .env_remove("PROPTEST_CASES")
            .env_remove("PROOF_FILTER")
            .env_remove("PROOF_FACTOR")
            .env_remove("PROOF_MINUTES")
            .env_remove("PROOF_TEST_MINUTES")
            .output()
            .expect("bash runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let ran = fs::read_to_string(self.path().join("ran")).unwrap_or_default();
        let code = output.status.code().expect("it ends by itself");
        (code, ran.split_whitespace().collect::<Vec<_>>().join(" "), said)
    }
}

#[test]
fn a_proof_continues_where_it_stopped_and_passes_only_when_all_tests_have() {
    let tree = Tree::new();
    let (code, ran, said) = tree.proof("a", "", "");
    assert_eq!((code, ran.as_str()), (3, "a"), "{said}");
    assert!(said.contains("not run: it b\n") && said.contains("PROOF UNFINISHED"), "{said}");
    assert!(said.contains("1 passed, 0 failed, 0 skipped, 2 not run"), "{said}");
    // Passed tests are not run again; failed ones are.
    let (code, ran, said) = tree.proof("a b", "c", "");
    assert_eq!((code, ran.as_str()), (1, "b c"), "{said}");
    assert!(said.contains("failed:  it c\n") && said.contains("PROOF FAILED"), "{said}");
    let (code, ran, said) = tree.proof("a b c", "", "");
    assert_eq!((code, ran.as_str()), (0, "c"), "{said}");
    assert!(said.ends_with("3 passed, 0 failed, 0 skipped, 0 not run\nPROOF PASSED\n"), "{said}");
    let (code, ran, _) = tree.proof("a b c", "", "");
    assert_eq!((code, ran.as_str()), (0, ""));
    // A changed tree needs a new proof.
    fs::write(tree.path().join("new"), "x").expect("written");
    let (_, ran, _) = tree.proof("a b c", "", "");
    assert_eq!(ran, "a b c");
}

#[test]
fn a_test_that_could_not_run_does_not_count_as_passed() {
    let tree = Tree::new();
    let (code, _, said) = tree.proof("a b c", "", "b");
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("skipped: it b\n"), "{said}");
    assert!(said.contains("2 passed, 0 failed, 1 skipped, 0 not run"), "{said}");
    let (code, ran, said) = tree.proof("a b c", "", "");
    assert_eq!((code, ran.as_str()), (0, "b"), "{said}");
}
