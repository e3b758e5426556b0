//! Statements that run every few seconds, or while others wait, use an index and do not scan a
//! table.

use super::super::delivery_summary::live_text;
use super::super::ordering::STUCK;
use super::super::orphaned;
use super::super::publish::{TAKEN, numbers};
use super::super::replay::{FAILED, waiting};
use super::super::retention::OLD;
use super::super::status::{deliveries_text, statuses_text};
use super::*;
use logmill_io::Value;

/// SQLite's plan of a statement, one step per line.
async fn plan(world: &World, text: &str, params: Vec<Value>) -> String {
    let text = format!("EXPLAIN QUERY PLAN {text}");
    let rows = world.hooks.sql().query(&text, params).await.expect("a plan").rows;
    let steps = rows.iter().map(|row| row.text(3).expect("a step").to_owned());
    steps.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn periodic_queries_scan_no_table() {
    let world = World::new(quick()).await;
    let open = "webhook_delivery_open (state=? AND endpoint_seq=?)";
    for (text, params, steps) in [
        (
            OLD.to_owned(),
            params![i64::MIN, 0, 1, 1],
            &["webhook_message_age (created_at>? AND created_at<?)", "PRIMARY KEY (message_seq=?)"]
                [..],
        ),
        (TAKEN.to_owned(), params![numbers([1, 2].into_iter())], &["rowid=?", open]),
        (STUCK.to_owned(), params![1], &[open, "webhook_delivery_open (state=?)", "rowid=?"]),
        (
            orphaned::page(),
            params![0, 0, 1, 1],
            &[
                "webhook_delivery_open (state=? AND (endpoint_seq,message_seq)>",
                "job_1 (kind=? AND key=?)",
            ],
        ),
    ] {
        let plan = plan(&world, &text, params).await;
        for step in steps {
            assert!(plan.contains(step), "{step} in {plan}");
        }
        assert!(!plan.contains("SCAN webhook_") && !plan.contains("SCAN job"), "{plan}");
        assert!(!plan.contains("DISTINCT") && !plan.contains("B-TREE FOR ORDER"), "{plan}");
    }
}

#[tokio::test]
async fn queries_of_the_api_scan_no_table() {
    let world = World::new(quick()).await;
    let open = "webhook_delivery_open (state=? AND endpoint_seq=?";
    let sorted = plan(&world, FAILED, params![1, 0, 10, 0, 0]).await;
    assert_eq!(sorted.matches(&format!("{open} AND message_seq>?)")).count(), 2, "{sorted}");
    let counted = plan(&world, &statuses_text(), params!["", 10]).await;
    assert!(counted.contains(open), "{counted}");
    let retried = plan(&world, &waiting(), params![1, 0, 10]).await;
    for step in [&format!("{open} AND message_seq>?)"), "job_1 (kind=? AND key=?)"] {
        assert!(retried.contains(step), "{step} in {retried}");
    }
    let summed = plan(&world, &live_text(), params![Value::json(&json!([["m"]]))]).await;
    for step in ["webhook_message_1 (id=?)", "PRIMARY KEY (message_seq=?)"] {
        assert!(summed.contains(step), "{step} in {summed}");
    }
    let (failed, of) =
        (DeliveryState::Exhausted, "webhook_delivery_of (endpoint_seq=? AND message_seq<?)");
    for (endpoint, state, step) in [
        (None, Some(failed), "webhook_delivery_failed (state=? AND message_seq<?)"),
        (Some("ep"), Some(failed), "(state=? AND "),
        (Some("ep"), Some(DeliveryState::Pending), open),
        (Some("ep"), None, of),
        (None, None, "PRIMARY KEY (message_seq<?)"),
    ] {
        let (text, params) = deliveries_text(endpoint, state, None, 10);
        let plan = plan(&world, &text, params).await;
        assert!(plan.contains(step), "{step} in {plan}");
    }
}
