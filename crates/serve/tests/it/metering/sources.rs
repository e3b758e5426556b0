//! The source under which an API key sends usage, across renamed keys, rotated secrets and changed sources.

use http_body_util::Full;
use logmill_serve::http::Keys;
use serde_json::json;

use super::engine::{Engine, on_both_engines};
use super::ground::{Metered, settings};

const SECRET: &str = "0123456789abcdef";

/// The sources of keys as `name=source`, or the error.
async fn synced(metered: &Metered, keys: &str, force: bool) -> Result<Vec<String>, String> {
    let keys = Keys::parse(keys).expect("keys").senders();
    let synced = metered.meter.sync_key_sources(&keys, force).await;
    let synced = synced.map_err(|error| error.to_string())?;
    Ok(synced.into_iter().map(|key| format!("{}={}", key.name, key.source)).collect())
}

async fn mark_used(metered: &Metered, keys: &str) {
    for key in Keys::parse(keys).expect("keys").senders() {
        metered.meter.mark_key_used(&key.fingerprint).await.expect("marked");
    }
}

async fn a_renamed_key_keeps_its_source(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let names = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect());
    let app = format!("app:{SECRET}:usage");
    assert_eq!(synced(&metered, &app, false).await, names(&["app=app"]));
    mark_used(&metered, &app).await;
    let renamed = format!("billing:{SECRET}:usage+read");
    assert_eq!(synced(&metered, &renamed, false).await, names(&["billing=app"]));
    // With a new secret, the key is recognized by its name.
    let rotated = "billing:fedcba9876543210:usage";
    assert_eq!(synced(&metered, rotated, false).await, names(&["billing=app"]));
    // A new key with the old name would send under the source of the other.
    let both = format!("{rotated},app:aaaaaaaaaaaaaaaa:usage");
    let refused = synced(&metered, &both, false).await.expect_err("it is refused");
    assert!(
        refused.contains("the key app would send") || refused.contains("API key app"),
        "{refused}"
    );
    let told_apart = format!("{both}:app-2");
    assert_eq!(synced(&metered, &told_apart, false).await, names(&["billing=app", "app=app-2"]));
    // Two keys may share a source if the configuration says so.
    let shared = format!("{rotated},app:aaaaaaaaaaaaaaaa:usage:app-2,c:cccccccccccccccc:usage:app");
    let expected = names(&["billing=app", "app=app-2", "c=app"]);
    assert_eq!(synced(&metered, &shared, false).await, expected);
}

async fn another_source_for_a_used_key_is_refused_unless_it_is_forced(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let key = |source: &str| format!("app:{SECRET}:usage{source}");
    let one = |source: &str| Ok(vec![format!("app={source}")]);
    assert_eq!(synced(&metered, &key(":first"), false).await, one("first"));
    assert_eq!(synced(&metered, &key(":second"), false).await, one("second"), "it was not used");
    mark_used(&metered, &key("")).await;
    let refused = synced(&metered, &key(":third"), false).await.expect_err("it is refused");
    for part in ["API key app", "source second", "third", "meter sources --force"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(synced(&metered, &key(""), false).await, one("second"), "what it had");
    assert_eq!(synced(&metered, &key(":third"), true).await, one("third"));
    assert_eq!(synced(&metered, &key(":third"), false).await, one("third"));
    let renamed = format!("other:{SECRET}:usage:second");
    synced(&metered, &renamed, false).await.expect_err("also under another name");
}

/// Earlier versions did not record which keys were used: in a meter with usage, all keys count as used.
async fn keys_of_a_meter_that_has_usage_already_count_as_used(engine: Engine) {
    let metered = Metered::new(&engine).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 1})).await;
    let key = |source: &str| format!("app:{SECRET}:usage{source}");
    assert_eq!(synced(&metered, &key(""), false).await, Ok(vec!["app=app".to_owned()]));
    synced(&metered, &key(":other"), false).await.expect_err("it may have been used");
}

async fn events_of_a_key_have_its_source_and_it_is_shown(engine: Engine) {
    let keys = format!("app:{SECRET}:usage+read:billing-eu");
    let metered = Metered::with(&engine, settings(), |state| {
        state.limits.keys = Keys::parse(&keys).expect("a key");
    })
    .await;
    let request = |method: &str, path: &str, body: &str| {
        let request =
            hyper::Request::builder().method(method).uri(path).header("host", "localhost");
        let request = request.header("x-apikey", SECRET).header("content-type", "application/json");
        request.body(Full::from(body.to_owned())).expect("a request")
    };
    let usage = json!({"customerId": "c", "value": 1, "id": "e"}).to_string();
    let sent = metered.ask(request("POST", "/usage/api.calls", &usage)).await;
    assert_eq!(sent.status, 201, "{}", sent.body);
    let found = metered.ask(request("GET", "/events/lookup?id=e", "")).await;
    assert_eq!((found.status, &found.body["source"]), (200, &json!("billing-eu")));
    let config = metered.ask(request("GET", "/config", "")).await;
    assert_eq!(config.body["source"], "billing-eu");
    // The key has been used by now.
    let changed = format!("app:{SECRET}:usage:other");
    synced(&metered, &changed, false).await.expect_err("it is used");
}

on_both_engines![
    a_renamed_key_keeps_its_source,
    another_source_for_a_used_key_is_refused_unless_it_is_forced,
    keys_of_a_meter_that_has_usage_already_count_as_used,
    events_of_a_key_have_its_source_and_it_is_shown,
];
