//! The acceptance suite of `tools/acceptance.py`, as an operator runs it: against a server named by `BASE_URL`, with
//! the key `API_KEY`.

use std::process::{Command, Output};

use super::at;
use crate::process::Sandbox;

const KEY: &str = "0123456789abcdef";
const EVENTS: &str = r#"meter.events={
    "api.calls" = { op = "sum" }, "storage.bytes" = { op = "max" },
    "response.time.ms" = { op = "avg" }, "test.min" = { op = "min" }, "test.count" = { op = "count" },
    "test.first" = { op = "first" }, "test.last" = { op = "last" } }"#;

fn suite(base: &str, key: &str) -> Output {
    let file = logmill_sim::workspace_root().join("tools/acceptance.py");
    let mut suite = Command::new("python3");
    suite.arg(file).env("BASE_URL", base).env("API_KEY", key);
    suite.output().expect("python3 is there: other tests need it too")
}

#[test]
fn the_acceptance_suite_passes_against_a_server_that_it_is_pointed_at() {
    let events = EVENTS.replace('\n', " ");
    let sandbox = Sandbox::with(&[&events, "database.durability=relaxed"]);
    let server = sandbox.serve_with(&["--set", &format!("server.keys=suite:{KEY}:admin")]);
    let base = format!("http://{}", at(&server));
    for _ in 0..2 {
        let run = suite(&base, KEY);
        let (message, wrong) =
            (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success() && message.contains("12 cases passed"), "{message}{wrong}");
    }
    let refused = suite(&base, "another-key-0123456");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("API_KEY"), "{refused:?}");
    assert!(server.terminate().success());
}
