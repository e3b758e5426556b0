//! The document is the file, and every path of it answers as it says.

use super::schema::{openapi, parameters, template};

#[test]
fn the_document_is_that_of_the_file() {
    let document = crate::http::api::document();
    let file = logmill_sim::workspace_root().join("docs/openapi.json");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, document).expect("written");
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(document == expected, "run this test with UPDATE=1 if the change is meant");
}

#[test]
fn names_are_unique_and_paths_are_told_apart() {
    let document = openapi();
    let paths = document["paths"].as_object().expect("paths");
    let operations = paths.values().filter_map(|path| path.as_object()).flatten();
    let ids: Vec<&str> =
        operations.filter_map(|(_, operation)| operation["operationId"].as_str()).collect();
    let different: std::collections::BTreeSet<&&str> = ids.iter().collect();
    assert_eq!(ids.len(), different.len());
    for path in paths.keys().filter(|path| path.starts_with("/api/")) {
        let short = path.trim_start_matches("/api/v1/{chain}");
        assert_eq!(template(document, short), *path);
        let named = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let parameters = parameters(document, path);
        for name in named {
            let is_it = |one: &&serde_json::Value| one["name"] == name && one["in"] == "path";
            assert!(parameters.iter().any(|one| is_it(&one)), "{path} does not tell of {name}");
        }
    }
}
