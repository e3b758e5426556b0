//! No page reads a whole table: checks the query plan of every statement, on SQLite.

use std::collections::BTreeSet;

use logmill_io::Value;
use logmill_serve::http::take_statements;

use super::sample_chain::SampleChain;

/// A step of a plan: its parent and its description.
type Step = (i64, String);

async fn plan(sample: &SampleChain, text: &str, params: Vec<Value>) -> Vec<Step> {
    let text = format!("EXPLAIN QUERY PLAN {text}");
    let answer = sample.derived.tables.sql().query(&text, params).await.expect("a plan");
    let step = |row: &logmill_io::Row| {
        (row.int(1).expect("a number"), row.text(3).expect("text").to_owned())
    };
    answer.rows.iter().map(step).collect()
}

/// The final table that a step reads, if any.
fn read(step: &str) -> Option<&str> {
    let table = step.strip_prefix("SEARCH ").or_else(|| step.strip_prefix("SCAN "))?;
    let table = table.split(' ').next().unwrap_or_default();
    let is_final = table == "f" || (table.starts_with("c1337_") && !table.ends_with("_tip"));
    is_final.then_some(table)
}

/// Steps whose rows may be sorted afterwards, because they are looked up by their whole key.
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
        // Rows looked up by the keys of the tip, one by one.
        let is_folded = beside("SCAN k");
        let is_named = NAMED.iter().any(|key| step.ends_with(key));
        let is_sorted = beside("USE TEMP B-TREE FOR ORDER BY");
        assert!(is_folded || is_named || !is_sorted, "{path} sorts: {step}\n{text}");
        // A page far down the list must not scan the list from its beginning.
        let walks = step.contains("<?") && step.contains(">?") && !step.contains(")<(");
        assert!(!walks, "{path} does not begin where the last page ended: {step}\n{text}");
    }
}

#[tokio::test]
async fn no_page_reads_a_whole_table() {
    let sample = SampleChain::from(0).await;
    let filters = [
        format!("/fees?integrator={}", sample.holder),
        format!("/fees?token={}", sample.holder),
        "/fees?fromBlock=2&toBlock=9".to_owned(),
        format!("/staking/events?address={}", sample.holder),
    ];
    let mut seen = BTreeSet::new();
    for path in sample.requests().values().chain(&filters) {
        take_statements();
        let answer = sample.derived.get(path).await;
        if let Some(next) = answer["next"].as_str() {
            let sign = if path.contains('?') { '&' } else { '?' };
            sample.derived.get(&format!("{path}{sign}cursor={next}")).await;
        }
        for (text, params) in take_statements() {
            let steps = plan(&sample, &text, params).await;
            check(path, &text, &steps);
            seen.extend(steps.iter().filter_map(|(_, step)| read(step)).map(str::to_owned));
        }
    }
    for table in ["f", "c1337_g1_ft_transfers", "c1337_g1_address_transactions"] {
        assert!(seen.contains(table), "{table} is not in {seen:?}");
    }
}
