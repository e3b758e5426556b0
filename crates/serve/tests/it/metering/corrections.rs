//! Looking up, cancelling and amending one event.

use logmill_io::sql::Execute;
use logmill_io::{Timestamp, params};
use logmill_meter::Settings;
use logmill_meter::period::parse_time;
use serde_json::json;

use super::engine::{Engine, on_both_engines};
use super::ground::{Metered, settings};

async fn a_cancelled_event_counts_no_more_and_is_told_with_its_reason(engine: Engine) {
    let metered = Metered::new(&engine).await;
    for (id, value) in [("a", 1), ("b", 10)] {
        metered.send("api.calls", json!({"customerId": "c", "value": value, "id": id})).await;
    }
    metered.set("2026-01-14T00:30:00Z");
    let daily = metered.aggregated("period=daily").await;
    assert_eq!(
        (&daily[0]["state"], &daily[0]["events"]["api.calls"]),
        (&json!("final"), &json!(11))
    );
    let cancel = json!({"source": "local", "id": "b", "reason": "sent by mistake"});
    let answer = metered.post("/events/cancel", &cancel).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(
        (&answer.body["state"], &answer.body["customerId"]),
        (&json!("cancelled"), &json!("c"))
    );
    let daily = metered.aggregated("period=daily").await;
    assert_eq!(
        (&daily[0]["state"], &daily[0]["events"]["api.calls"]),
        (&json!("corrected"), &json!(1))
    );
    let mut found = metered.found("/events/lookup?id=b").await;
    // From the database's clock, which keeps running on PostgreSQL.
    let at = found["corrections"][0]["at"].take();
    assert!(at.as_str().is_some_and(|at| at.starts_with("2026-01-14T00:3")), "{at}");
    let expected = json!([{
        "action": "cancel", "valueBefore": "10", "valueAfter": null, "reason": "sent by mistake",
        "actor": "local", "at": null,
    }]);
    assert_eq!(found["corrections"], expected);
    let behind = metered.found("/aggregations/c_daily_20260113/events").await;
    assert_eq!(behind.as_array().map(Vec::len), Some(1), "only what counts");
    let again = metered.post("/events/cancel", &cancel).await;
    assert_eq!(again.status, 409, "{}", again.body);
}

async fn an_amended_event_has_its_new_value_exactly(engine: Engine) {
    let metered = Metered::new(&engine).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 1, "id": "a"})).await;
    let text = r#"{"id":"a","value":0.1000000000000000001,"reason":"x"}"#;
    let wrong = metered.post_as("/events/amend", "application/json", text).await;
    assert_eq!(wrong.status, 400, "more places than the type takes: {}", wrong.body);
    let text = r#"{"id":"a","value":0.100000000000000001,"reason":"x"}"#;
    let answer = metered.post_as("/events/amend", "application/json", text).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.body["valueExact"], "0.100000000000000001");
    assert_eq!(answer.body["state"], "amended");
    let daily = metered.aggregated("period=daily").await;
    assert_eq!(daily[0]["eventsExact"]["api.calls"], "0.100000000000000001");
    // Sending the original event again still counts as a repetition.
    metered.send("api.calls", json!({"customerId": "c", "value": 1, "id": "a"})).await;
    assert_eq!(metered.found("/events").await.as_array().map(Vec::len), Some(1));
}

async fn a_correction_that_makes_no_sense_is_refused(engine: Engine) {
    let metered = Metered::new(&engine).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 1, "id": "a"})).await;
    for (path, body, status) in [
        ("/events/cancel", json!({"id": "none", "reason": "x"}), 404),
        ("/events/cancel", json!({"id": "a", "reason": ""}), 400),
        ("/events/cancel", json!({"id": "a"}), 400),
        ("/events/cancel", json!({"reason": "x"}), 400),
        ("/events/cancel", json!({"id": "a", "reason": "x", "value": 1}), 400),
        ("/events/cancel", json!({"id": "a", "reason": "x", "why": 1}), 400),
        ("/events/cancel", json!([]), 400),
        ("/events/amend", json!({"id": "a", "reason": "x"}), 400),
        ("/events/amend", json!({"id": "a", "reason": "x", "value": "much"}), 400),
        ("/events/amend", json!({"id": "a", "reason": "x", "value": 1}), 409),
        ("/events/amend", json!({"id": "a", "source": "other", "reason": "x", "value": 2}), 404),
    ] {
        let answer = metered.post(path, &body).await;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
        assert!(answer.body["error"].is_string());
    }
    assert_eq!(metered.get("/events/lookup?id=none").await.status, 404);
    assert_eq!(metered.get("/events/lookup").await.status, 400);
}

/// Corrections of chain usage, as the meter stores them.
async fn corrections_of_chains_are_listed_newest_first(engine: Engine) {
    let metered = Metered::new(&engine).await;
    assert_eq!(metered.found("/corrections").await, json!([]));
    let text =
        "INSERT INTO meter_chain_correction (chain, log, seq, first_block, last_block, reason,
            blocks, cancelled, recorded, begun_ms, done_ms)
        VALUES (5, 0, 1, 100, 109, 'repair', 3, 4, 2, 1768291200000, 1768291260000),
            (7, 0, 1, 20, 20, 'rebuild', 1, 1, 0, 1768294800000, NULL),
            (5, 0, 2, 100, 100, 'repair', 1, 0, 1, 1768294800000, 1768294801000)";
    let sql = metered.meter.sql();
    sql.write(|tx| async move { tx.execute(text, params![]).await }).await.expect("stored");
    let all = metered.get("/corrections").await;
    super::documented::check_answer("/corrections", "get", &all);
    let expected = json!([
        {"chain": 5, "replacement": 2, "firstBlock": 100, "lastBlock": 100, "reason": "repair",
            "blocks": 1, "cancelled": 0, "recorded": 1,
            "begunAt": "2026-01-13T09:00:00.000Z", "doneAt": "2026-01-13T09:00:01.000Z"},
        {"chain": 7, "replacement": 1, "firstBlock": 20, "lastBlock": 20, "reason": "rebuild",
            "blocks": 1, "cancelled": 1, "recorded": 0,
            "begunAt": "2026-01-13T09:00:00.000Z", "doneAt": null},
        {"chain": 5, "replacement": 1, "firstBlock": 100, "lastBlock": 109, "reason": "repair",
            "blocks": 3, "cancelled": 4, "recorded": 2,
            "begunAt": "2026-01-13T08:00:00.000Z", "doneAt": "2026-01-13T08:01:00.000Z"},
    ]);
    assert_eq!(all.body, expected);
    let one = metered.found("/corrections?limit=1").await;
    assert_eq!(one, json!([expected[0]]));
    // Limits out of range are clamped.
    assert_eq!(metered.found("/corrections?limit=0").await, json!([expected[0]]));
    assert_eq!(metered.found("/corrections?limit=1001").await, expected);
    for wrong in ["limit=x", "chain=5"] {
        let refused = metered.get(&format!("/corrections?{wrong}")).await;
        assert_eq!(refused.status, 400, "{wrong}: {}", refused.body);
        super::documented::check_answer("/corrections", "get", &refused);
    }
}

/// While replaced blocks are not corrected, figures for their time may change.
async fn an_aggregate_says_that_a_correction_of_its_usage_is_pending(engine: Engine) {
    let chain_types = [("api.calls".to_owned(), vec![5])].into();
    let settings = Settings { chain_types, chain_wait: None, ..settings() };
    let metered = Metered::with(&engine, settings, |_| {}).await;
    for (event_type, customer) in [("api.calls", "c"), ("response.time.ms", "d")] {
        metered.send(event_type, json!({"customerId": customer, "value": 1})).await;
    }
    metered.meter.chain_is_complete(5, Timestamp(i64::MAX)).await.expect("complete");
    metered.set("2026-01-14T00:30:00Z");
    let pending = async || {
        let all = metered.aggregated("period=daily").await;
        let of = |customer: &str| {
            let found = all.iter().find(|one| one["customerId"] == customer).expect("it is made");
            assert_eq!(found["state"], "final");
            found["correctionPending"].as_bool().expect("a flag")
        };
        (of("c"), of("d"))
    };
    assert_eq!(pending().await, (false, false));
    let sql = metered.meter.sql();
    let mark = async |chain: i64, from: &str| {
        let text = "INSERT INTO meter_chain_state
                (chain, version, begun, applied, pending_ms, pending_since_ms)
            VALUES ($1, 1, 0, 0, $2, $2)
            ON CONFLICT (chain) DO UPDATE SET pending_ms = excluded.pending_ms";
        let from = parse_time(from).expect("a time");
        let write = sql.write(|tx| async move { tx.execute(text, params![chain, from]).await });
        write.await.expect("marked");
    };
    // Replacements on another chain or after the period do not concern it.
    mark(7, "2026-01-13T00:00:00Z").await;
    mark(5, "2026-01-14T00:00:00Z").await;
    assert_eq!(pending().await, (false, false));
    mark(5, "2026-01-13T23:59:00Z").await;
    assert_eq!(pending().await, (true, false));
    let one = metered.get("/aggregations/c_daily_20260113").await;
    super::documented::check_answer("/aggregations/{id}", "get", &one);
    assert_eq!(one.body["correctionPending"], true);
}

on_both_engines![
    corrections_of_chains_are_listed_newest_first,
    an_aggregate_says_that_a_correction_of_its_usage_is_pending,
    a_cancelled_event_counts_no_more_and_is_told_with_its_reason,
    an_amended_event_has_its_new_value_exactly,
    a_correction_that_makes_no_sense_is_refused,
];
