//! No secret of an address is ever shown, whatever a node returns.

use proptest::prelude::*;

use super::*;

/// Everything that is shown about a chain whose node repeats its own address in every text.
async fn shown(address: &str, quirks: Quirks) -> String {
    let set = |_, node: &mut NodeSettings| {
        *node = NodeSettings::new(Endpoint::parse(address).expect("fine"));
    };
    let patience = |settings: &mut EvmSettings| settings.patience = Duration::from_secs(1);
    let pool = pool_with(vec![quirks], patience, set);
    let mut shown = Vec::new();
    let debug = |error: Error| format!("{error} {error:?}");
    shown.extend(pool.source.info().await.err().map(debug));
    shown.extend(pool.blocks(1..2).await.err().map(debug));
    shown.extend(pool.source.heads().await.err().map(debug));
    shown.extend(pool.source.pass("eth_call", "[]").await.err().map(debug));
    assert!(shown.len() >= 3, "it fails: {shown:?}");
    shown.push(format!("{:?} {:?}", pool.source, pool.source.nodes()));
    shown.join("\n")
}

#[tokio::test(start_paused = true)]
async fn nodes_that_differ_in_their_secrets_alone_have_names_of_their_own() {
    let set = |index: usize, node: &mut NodeSettings| {
        let address = format!("https://node.example/v3/key{index}");
        *node = NodeSettings::new(Endpoint::parse(&address).expect("fine"));
    };
    let pool = pool_with(vec![Quirks::default(), Quirks::default()], |_| {}, set);
    let names: Vec<String> = pool.source.nodes().into_iter().map(|node| node.name).collect();
    assert_eq!(names, ["node.example:443", "node.example:443#2"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(logmill_io::proof_cases(24)))]

    #[test]
    fn no_secret_of_an_address_is_shown(
        user in "u[a-z]{6}", pass in "p[A-Z0-9]{8}", key in "[a-f0-9]{20}", token in "[A-Za-z0-9]{16}", way in 0..4,
    ) {
        let address = format!("https://{user}:{pass}@node.example/v3/{key}?token={token}");
        let said = format!("no project {key} of {user}:{pass}, see {address}");
        let mut quirks = Quirks::default();
        match way {
            0 => quirks.error = Some((-32_000, said)),
            1 => quirks.body = Some(format!(r#"{{"id":0,"error":"{said}"}}"#)),
            2 => quirks.error = Some((-32_005, format!("rate limit: {said}"))),
            _ => quirks.tamper = tamper(move |_, result| *result = json!(said)),
        }
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build();
        let shown = runtime.expect("a runtime").block_on(shown(&address, quirks));
        for secret in [&user, &pass, &key, &token] {
            prop_assert!(!shown.contains(secret.as_str()), "{} in {}", secret, shown);
        }
    }
}
