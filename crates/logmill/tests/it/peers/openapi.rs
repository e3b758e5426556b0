//! The description of the API, checked by the third-party linter redocly.

use std::process::Command;

use logmill_sim::anvil::peer;
use logmill_sim::workspace_root;
use serde_json::Value;

use crate::process::finish;

#[test]
fn the_document_passes_redocly_without_a_warning() {
    let root = workspace_root();
    let mut lint = Command::new("node");
    lint.arg(peer("@redocly/cli/bin/cli.js")).args(["lint", "--format=json", "--config"]);
    lint.arg(root.join("tools/node/redocly.yaml")).arg(root.join("docs/openapi.json"));
    // By default it checks for updates and reports its usage over the network.
    lint.env("REDOCLY_TELEMETRY", "off").env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true");
    let ended = finish(&mut lint);
    let said: Value = serde_json::from_str(&ended.stdout)
        .unwrap_or_else(|error| panic!("redocly says no JSON: {error}: {ended:?}"));
    let problems = said["problems"].as_array().expect("a list");
    let shown: Vec<String> = problems
        .iter()
        .map(|one| {
            format!("{}: {} {}", one["ruleId"], one["message"], one["location"][0]["pointer"])
        })
        .collect();
    assert!(shown.is_empty(), "{shown:#?}");
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
