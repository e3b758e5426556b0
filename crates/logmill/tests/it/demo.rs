//! The demo: it runs, names what is not implemented yet, and leaves nothing behind.

use crate::process::{LOGMILL, command, finish};

#[test]
fn the_demo_shows_the_features_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ended = finish(command(LOGMILL, folder.path()).arg("demo").env("TMPDIR", folder.path()));
    let answer = ended.answer();
    for part in [
        "2999 done",
        "1 dead letter",
        "1000 heights",
        "epoch 2",
        "of one contract, the same as a scan",
        "a reorg of 5",
        "verified again",
        "12 processors",
        "sent twice and counted once",
        "Not implemented yet",
    ] {
        assert!(answer.contains(part), "{part:?} is not in {answer}");
    }
    assert!(ended.stderr.contains("3000"), "progress is shown: {ended:?}");
    assert!(!ended.stderr.contains('\r'), "in plain lines: {ended:?}");
    let left = std::fs::read_dir(folder.path()).expect("listed").count();
    assert_eq!(left, 0, "nothing is left");
}
