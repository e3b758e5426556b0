//! The generated document equals the file, and every path responds as documented.

use super::schema::{openapi, parameters, template};

#[test]
fn the_document_equals_the_file() {
    let document = logmill_serve::http::document();
    let file = logmill_sim::workspace_root().join("docs/openapi.json");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, document).expect("written");
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(document == expected, "run this test with UPDATE=1 if the change is meant");
}

#[test]
fn operation_ids_are_unique_and_path_parameters_are_described() {
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

/// The paths of the routes in a source file, each of which follows a mark.
fn routed(file: &str, mark: &str) -> Vec<String> {
    let source = logmill_sim::workspace_root().join("crates/serve/src/http").join(file);
    let source = std::fs::read_to_string(source).expect("it can be read");
    let routes = source.split(mark).skip(1);
    routes.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

#[test]
fn every_route_is_in_the_document() {
    let document = openapi();
    let paths = document["paths"].as_object().expect("paths");
    let routes =
        [routed("server_routes.rs", "path: \""), routed("health.rs", ".route(\"")].concat();
    assert!(routes.len() > 12, "{routes:?}");
    for route in routes {
        assert!(paths.contains_key(&route), "{route} is not described");
    }
}

/// The linter rules that matter to client generators.
#[test]
fn the_document_has_what_client_generators_need() {
    let document = openapi();
    assert!(document["servers"].as_array().is_some_and(|servers| !servers.is_empty()));
    let text = document.to_string();
    let referred = text.split("\"#/components/").skip(1).filter_map(|rest| rest.split('"').next());
    for path in referred {
        assert!(document.pointer(&format!("/components/{path}")).is_some(), "{path} is missing");
    }
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let what = format!("{method} {path}");
            assert!(operation["operationId"].is_string(), "{what} has no name");
            assert!(operation["summary"].is_string(), "{what} has no summary");
            let responses = operation["responses"].as_object().expect("responses");
            let good = |status: &String| status.starts_with('2') || status == "101";
            assert!(responses.keys().any(good), "{what} has no answer that is good");
            assert!(
                responses
                    .values()
                    .all(|it| it["description"].is_string() || it["$ref"].is_string())
            );
        }
    }
}
