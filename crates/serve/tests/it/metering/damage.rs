//! Damaged stored usage: the responses, and the status.

use logmill_io::params;
use logmill_io::sql::Execute;
use logmill_serve::readiness::usage::UsageCheck;
use logmill_serve::readiness::{Cause, Check};
use serde_json::{Value, json};

use super::engine::{Engine, on_both_engines};
use super::ground::Metered;

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
    let check = |said: &Value| {
        let said = said.as_str().expect("an error");
        assert!(said.contains(&format!("sequence {seq} is damaged")), "{said}");
        assert!(said.contains("docs/runbooks/damaged-usage.md"), "{said}");
    };
    let answer = metered.get("/events/lookup?id=e2").await;
    assert_eq!(answer.status, 500, "{answer:?}");
    check(&answer.body["error"]);
    // A page has the other events, followed by the damaged one and the reason.
    for path in ["/events", "/events?customerId=acme"] {
        let answer = metered.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        super::documented::check_answer("/events", "get", &answer);
        assert_eq!(answer.headers["x-damaged-events"], "1", "{path}");
        let entries = answer.body.as_array().expect("a list");
        let ids: Vec<&Value> = entries.iter().map(|entry| &entry["id"]).collect();
        assert_eq!(ids, [&json!("e3"), &json!("e1"), &Value::Null], "{path}");
        assert_eq!((&entries[2]["damaged"], &entries[2]["sequence"]), (&json!(true), &json!(seq)));
        assert_eq!(entries[2].as_object().map(|entry| entry.len()), Some(3), "nothing else of it");
        check(&entries[2]["error"]);
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

async fn a_damaged_name_of_a_customer_or_series_moves_no_usage(engine: Engine) {
    for (table, damage, finding) in [
        ("meter_customer", "name = 'acmf'", "customer"),
        ("meter_series", "event_type = 'api.callt'", "series"),
        ("meter_series", "dims = '{}'", "series"),
        ("meter_series", "customer = customer + 1", "series"),
        ("meter_series", "checks = checks + 1", "series"),
    ] {
        let metered = Metered::new(&engine).await;
        metered.send("api.calls", json!({"customerId": "acme", "value": 5, "id": "e1"})).await;
        metered.send("api.calls", json!({"customerId": "bolt", "value": 7, "id": "e2"})).await;
        let sql = metered.meter.sql();
        let text = match finding {
            "customer" => "SELECT id FROM meter_customer WHERE name = 'acme'",
            _ => {
                "SELECT s.id FROM meter_series s JOIN meter_customer c ON c.id = s.customer
                 WHERE c.name = 'acme'"
            }
        };
        let found = sql.query(text, params![]).await.expect("works");
        let id = found.row().expect("a row").int(0).expect("a number");
        let text = format!("UPDATE {table} SET {damage} WHERE id = {id}");
        sql.execute(&text, params![]).await.expect("damage");
        let answer = metered.get("/events").await;
        assert_eq!(answer.status, 200, "{damage}: {answer:?}");
        assert_eq!(answer.headers["x-damaged-events"], "1", "{damage}: {answer:?}");
        let shown: Vec<Value> = answer.body.as_array().expect("a list").clone();
        assert_eq!(shown[0]["customerId"], "bolt", "{damage}: {shown:?}");
        assert!(!answer.body.to_string().contains("acm"), "{damage}: {shown:?}");
        // A damaged event type does not show in this query, but the audit finds it.
        if !damage.starts_with("event_type") {
            let path = "/meters/query?eventType=api.calls&from=2020-01-01T00:00:00Z\
                        &groupBy=customerId";
            let answer = metered.get(path).await;
            assert_eq!(answer.status, 500, "{damage}: {answer:?}");
            let said = answer.body["error"].as_str().expect("an error");
            assert!(said.contains(&format!("{finding} {id} is damaged")), "{damage}: {said}");
            assert!(said.contains("docs/runbooks/damaged-usage.md"), "{damage}: {said}");
        }
        metered.meter.audit_some(100).await.expect("an audit");
        let audit = &metered.get("/status").await.body["usage_audit"];
        assert_eq!(audit["damaged_records"], json!([format!("{finding} {id}")]), "{damage}");
    }
}

/// Rows written by versions without checksums are readable, and the audit adds checksums to them.
async fn names_without_a_checksum_are_read_and_get_one(engine: Engine) {
    let metered = Metered::new(&engine).await;
    metered.send("api.calls", json!({"customerId": "acme", "value": 5, "id": "e1"})).await;
    let sql = metered.meter.sql();
    for table in ["meter_customer", "meter_series"] {
        let text = format!("UPDATE {table} SET checks = NULL");
        sql.execute(&text, params![]).await.expect("an earlier version");
    }
    assert_eq!(metered.found("/events").await[0]["customerId"], "acme");
    metered.meter.audit_some(100).await.expect("an audit");
    for table in ["meter_customer", "meter_series"] {
        let text = format!("SELECT count(*) FROM {table} WHERE checks IS NULL");
        let left = sql.query(&text, params![]).await.expect("works");
        assert_eq!(left.row().expect("a row").int(0).expect("a number"), 0, "{table}");
    }
    let audit = &metered.get("/status").await.body["usage_audit"];
    assert_eq!(audit["damaged"], 0, "{audit}");
    assert_eq!(metered.found("/events").await[0]["customerId"], "acme");
}

on_both_engines![
    a_damaged_event_is_an_error_that_names_it_and_the_audit_shows_it,
    a_damaged_name_of_a_customer_or_series_moves_no_usage,
    names_without_a_checksum_are_read_and_get_one,
];
