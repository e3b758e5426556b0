//! No page reads a whole table: the plans of every statement, on SQLite.

use std::collections::BTreeSet;

use logmill_io::Value;

use super::rich::Rich;
use crate::http::api::plans::taken;

/// A step of a plan: its parent, and what it does.
type Step = (i64, String);

async fn plan(rich: &Rich, text: &str, params: Vec<Value>) -> Vec<Step> {
    let text = format!("EXPLAIN QUERY PLAN {text}");
    let answer = rich.world.tables.sql().query(&text, params).await.expect("a plan");
    let step = |row: &logmill_io::Row| {
        (row.int(1).expect("a number"), row.text(3).expect("text").to_owned())
    };
    answer.rows.iter().map(step).collect()
}

/// The final table that a step reads, if it reads one.
fn read(step: &str) -> Option<&str> {
    let table = step.strip_prefix("SEARCH ").or_else(|| step.strip_prefix("SCAN "))?;
    let table = table.split(' ').next().unwrap_or_default();
    let is_final = table == "f" || (table.starts_with("c1337_") && !table.ends_with("_tip"));
    is_final.then_some(table)
}

/// Rows that are sorted after they were found: each is named by its whole key.
const NAMED: [&str; 2] = ["(block_height=? AND tx_index=?)", "(pair_id=? AND contract_address=?)"];

/// Fails if a statement reads more of a final table than its limit.
fn check(path: &str, text: &str, steps: &[Step]) {
    for (parent, step) in steps {
        let beside = |what: &str| steps.iter().any(|(of, step)| of == parent && step == what);
        assert!(!step.starts_with("SCAN c1337_"), "{path} reads a whole table: {step}\n{text}");
        if read(step).is_none() {
            continue;
        }
        assert!(!step.starts_with("SCAN f"), "{path} reads a whole table: {step}\n{text}");
        // The keys of the tip, one by one.
        let is_folded = beside("SCAN k");
        let is_named = NAMED.iter().any(|key| step.ends_with(key));
        let is_sorted = beside("USE TEMP B-TREE FOR ORDER BY");
        assert!(is_folded || is_named || !is_sorted, "{path} sorts: {step}\n{text}");
        // A page far down the list must not walk there from its beginning.
        let walks = step.contains("<?") && step.contains(">?") && !step.contains(")<(");
        assert!(!walks, "{path} does not begin where the last page ended: {step}\n{text}");
    }
}

#[tokio::test]
async fn no_page_reads_a_whole_table() {
    let rich = Rich::from(0).await;
    let filters = [
        format!("/fees?integrator={}", rich.holder),
        format!("/fees?token={}", rich.holder),
        "/fees?fromBlock=2&toBlock=9".to_owned(),
        format!("/staking/events?address={}", rich.holder),
    ];
    let mut seen = BTreeSet::new();
    for path in rich.requests().values().chain(&filters) {
        taken();
        let answer = rich.world.get(path).await;
        if let Some(next) = answer["next"].as_str() {
            let sign = if path.contains('?') { '&' } else { '?' };
            rich.world.get(&format!("{path}{sign}cursor={next}")).await;
        }
        for (text, params) in taken() {
            let steps = plan(&rich, &text, params).await;
            check(path, &text, &steps);
            seen.extend(steps.iter().filter_map(|(_, step)| read(step)).map(str::to_owned));
        }
    }
    for table in ["f", "c1337_g1_ft_transfers", "c1337_g1_address_transactions"] {
        assert!(seen.contains(table), "{table} is not in {seen:?}");
    }
}
