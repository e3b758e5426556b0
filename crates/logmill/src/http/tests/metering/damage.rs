//! Stored usage that is damaged: what is answered, and what the status shows.

use logmill_io::params;
use logmill_io::sql::Execute;
use serde_json::json;

use super::engine::{Engine, on_both_engines};
use super::ground::Metered;
use crate::readiness::usage::UsageCheck;
use crate::readiness::{Cause, Check};

async fn a_damaged_event_is_an_error_that_names_it_and_the_audit_shows_it(engine: Engine) {
    let metered = Metered::new(&engine).await;
    for number in 1..=3 {
        let event = json!({"customerId": "acme", "value": number, "id": format!("e{number}")});
        assert_eq!(metered.post("/usage/api.calls", &event).await.status, 201);
    }
    let sql = metered.meter.sql();
    let found = sql.query("SELECT seq FROM meter_event WHERE id = 'e2'", params![]).await;
    let seq = found.expect("works").row().expect("a row").int(0).expect("a number");
    let text = "UPDATE meter_event SET amount = '20' WHERE id = 'e2'";
    sql.execute(text, params![]).await.expect("damage");
    for path in ["/events", "/events?customerId=acme", "/events/lookup?id=e2"] {
        let answer = metered.get(path).await;
        assert_eq!(answer.status, 500, "{path}: {answer:?}");
        let said = answer.body["error"].as_str().expect("an error").to_owned();
        assert!(said.contains(&format!("sequence {seq} is damaged")), "{path}: {said}");
        assert!(said.contains("docs/runbooks/damaged-usage.md"), "{said}");
    }
    let audit = &metered.get("/status").await.body["usage_audit"];
    assert_eq!((&audit["damaged"], &audit["rounds"]), (&json!(0), &json!(0)), "{audit}");
    metered.meter.audit_some(100).await.expect("an audit");
    let audit = &metered.get("/status").await.body["usage_audit"];
    assert_eq!(audit["damaged"], 1, "{audit}");
    assert_eq!(audit["damaged_records"], json!([format!("event {seq}")]));
    assert_eq!(audit["events_checked"], 3);
    let check = UsageCheck::new(metered.meter.clone());
    let found = check.check().await.expect("the audit can be read");
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].cause, found[0].cause.services().len()), (Cause::UsageDamaged, 0));
}

on_both_engines![a_damaged_event_is_an_error_that_names_it_and_the_audit_shows_it,];
