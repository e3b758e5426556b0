//! Tests of the whole configuration: which source wins, and which key an error names.

use super::*;

#[path = "../../../serve/tests/it/api/schema.rs"]
#[allow(dead_code, reason = "shared with the tests of what is served")]
mod schema;

/// Loads a configuration from variables and flags, without a file.
fn load(variables: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Config> {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let sources = ConfigSources {
        file: None,
        environment: variables.iter().map(owned).collect(),
        flags: flags.iter().map(owned).collect(),
    };
    Config::load(&sources)
}

fn refused(variables: &[(&str, &str)], flags: &[(&str, &str)]) -> String {
    logmill_io::error_chain(&load(variables, flags).err().expect("it is refused"))
}

#[test]
fn the_defaults_are_complete_and_valid() {
    let settings = load(&[], &[]).expect("the defaults").settings;
    assert!(settings.postgres().is_none() && settings.s3().is_none());
    assert_eq!(settings.durability(), Durability::Full);
    assert_eq!(settings.index(), finalized_log_index::Settings::default());
    assert_eq!(settings.work.retention(), Duration::from_secs(7 * 24 * 3_600));
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let mut layers = Layers::defaults().expect("the defaults");
    let file = "[work]\nslots = 11\nlease_ms = 111000\n[log]\nlevel = \"warn\"\n";
    layers.add_file(Path::new("f.toml"), file).expect("a fine file");
    let variables = [("LOGMILL_WORK_SLOTS", "12"), ("LOG_LEVEL", "DEBUG")];
    let variables = variables.map(|(name, text)| (name.to_owned(), text.to_owned()));
    layers.add_environment(&BTreeMap::from(variables)).expect("fine variables");
    layers.add_flags(&[("work.slots".to_owned(), "13".to_owned())]).expect("a fine flag");
    let settings = layers.settings().expect("settings");
    assert_eq!((settings.work.slots, settings.work.lease_ms), (13, 111_000));
    assert!(matches!(settings.log.level, Level::Debug));
    assert_eq!(layers.origin("work.lease_ms"), "f.toml");
    assert_eq!(layers.origin("work.slots"), "the command line");
    assert_eq!(layers.origin("work.slow_poll_ms"), "the defaults");
}

#[test]
fn reads_are_passed_on_to_nodes_unless_that_is_turned_off() {
    let forward = |flags: &[_]| load(&[], flags).expect("fine").settings.rpc.limits(3).forward;
    assert!(forward(&[]).is_on && forward(&[]).named.is_empty());
    assert!(!forward(&[("rpc.pass_through", "false")]).is_on);
    let named =
        forward(&[("rpc.pass_through_methods", "debug_traceCall, eth_sendRawTransaction,")]);
    assert!(named.is_on);
    assert_eq!(named.named, ["debug_traceCall", "eth_sendRawTransaction"]);
}

#[test]
fn every_key_has_a_variable() {
    for (key, value) in Layers::defaults().expect("the defaults").leaves() {
        if key == "data" {
            continue;
        }
        let name = format!("LOGMILL_{}", key.replace('.', "_")).to_uppercase();
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let config = load(&[(&name, &text)], &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.layers.origin(&key), format!("the variable {name}"));
    }
    assert_eq!(load(&[("LOGMILL_DATA", "x")], &[]).expect("fine").settings.data, Path::new("x"));
}

#[test]
fn an_unknown_key_is_refused_with_its_source() {
    let file = |text| Layers::defaults().expect("the defaults").add_file(Path::new("f.toml"), text);
    for (text, key) in [
        ("[database]\naddress = \"x\"\n", "database.address"),
        ("datum = 1\n", "datum"),
        ("[metrics]\n", "metrics"),
        ("database = 1\n", "database"),
        ("[index]\nprefix = \"x\"\n", "index.prefix"),
        ("[index.guardrails]\nthrottle = 1\n", "index.guardrails.throttle"),
    ] {
        let error = file(text).expect_err(text);
        assert_eq!(error.to_string(), format!("f.toml: unknown key {key}"), "{text}");
    }
    assert!(
        refused(&[("LOGMILL_DATABASE_ADDRESS", "x")], &[]).contains("LOGMILL_DATABASE_ADDRESS")
    );
    assert!(refused(&[], &[("work.slot", "1")]).contains("unknown key work.slot"));
    load(&[("LOGMILL_TEST_DATA", "x")], &[]).map(|_| ()).expect("not a key of ours");
}

#[test]
fn the_log_index_accepts_the_largest_and_smallest_of_all_settings() {
    let most = [
        ("index.cell_blocks", "1048576"),
        ("index.chunk_logs", "8388608"),
        ("index.piece_logs", "8388608"),
        ("index.commit_blocks", "4096"),
        ("index.merge_cpu_percent", "100"),
    ];
    let least = most.map(|(key, _)| (key, "1"));
    for flags in [most, least] {
        let settings = load(&[], &flags).expect("within bounds").settings.index();
        settings.validate().expect("the index accepts them");
    }
}

#[test]
fn an_invalid_value_is_refused_with_its_key_and_source() {
    for (key, value, why) in [
        ("work.slots", "many", "invalid type: string \"many\", expected usize"),
        ("work.slots", "0", "0 is not between 1 and 1000"),
        ("work.slots", "-1", "invalid value: integer `-1`, expected usize"),
        ("work.lease_ms", "5", "5 is not between 100 and 86400000"),
        ("work.slow_poll_ms", "60001", "60001 is not between 1 and 60000"),
        ("database.durability", "fast", "unknown variant `fast`, expected `full` or `relaxed`"),
        (
            "database.schema",
            "A",
            "\"A\": expected at most 63 lower-case letters, digits and underscores",
        ),
        ("index.cell_blocks", "1000", "1000 is not a power of two"),
        ("index.cell_blocks", "0", "0 is not between 1 and 1048576"),
        ("index.piece_logs", "2000000", "2000000 is not between 1 and 1048576"),
        ("index.broad_policy", "scan", "unknown variant `scan`, expected `error` or `block_scan`"),
        ("index.guardrails.throttle_ms", "-1", "invalid value: integer `-1`, expected u64"),
        ("server.listen", "here", "\"here\" is not an address and port"),
        ("server.keys", "me:short:read", "a secret needs at least 16 characters"),
        ("rpc.max_results", "0", "0 is not between 1 and 1000000"),
        ("blobs.kind", "s3", ""),
        ("data", "", "must name a folder"),
    ] {
        let message = refused(&[], &[(key, value)]);
        let expected = if key == "blobs.kind" {
            "the defaults: blobs.bucket: must be set if blobs.kind is s3".to_owned()
        } else {
            format!("the command line: {key}: {why}")
        };
        assert_eq!(message, expected);
    }
}

#[test]
fn a_value_of_the_wrong_form_is_refused_with_an_example_and_without_its_secrets() {
    let file = |text| Layers::defaults().expect("the defaults").add_file(Path::new("f.toml"), text);
    for (text, key, example) in [
        ("[server]\nkeys = [\"me:tiger:read\"]\n", "server.keys", "NAME:SECRET:SCOPES"),
        (
            "[[server.keys]]\nname = \"me\"\nsecret = \"tiger\"\n",
            "server.keys",
            "keys = \"billing:",
        ),
        ("[server.keys]\nme = \"tiger\"\n", "server.keys", "keys = \"billing:"),
        ("[secrets]\nkeys = [\"tiger\"]\n", "secrets.keys", "logmill secrets generate"),
        ("[chain]\nrpc_urls = [\"http://me:tiger@h\"]\n", "chain.rpc_urls", "rpc_urls = \"http"),
        ("[database.url]\nhost = \"tiger\"\n", "database.url", "postgresql://"),
        ("[meter.webhooks]\nurl = \"http://tiger\"\n", "meter.webhooks", "[[meter.webhooks]]"),
        ("[meter]\nevents = [\"api.calls\"]\n", "meter.events", "{ op = \"sum\" }"),
        ("[meter.rules]\nname = \"r\"\n", "meter.rules", "[[meter.rules]]"),
        ("[meter.alerts]\nname = \"a\"\n", "meter.alerts", "[[meter.alerts]]"),
        ("[meter]\nperiods = \"daily\"\n", "meter.periods", "periods = ["),
    ] {
        let message = file(text).expect_err(text).to_string();
        assert!(message.starts_with(&format!("f.toml: {key}: ")), "{text}: {message}");
        assert!(message.contains(example) && !message.contains("tiger"), "{text}: {message}");
    }
    // If the form is right, the error of the parser is the best one.
    let message = file("[meter.events]\n\"api.calls\" = { op = \"total\" }\n").expect_err("no op");
    assert!(message.to_string().contains("total"), "{message}");
}

#[test]
fn s3_needs_credentials_and_a_safe_address() {
    let given = [
        ("blobs.kind", "s3"),
        ("blobs.bucket", "b"),
        ("blobs.access_key", "a"),
        ("blobs.secret_key", "s"),
    ];
    let with = |more: &[(&str, &str)]| load(&[], &[&given[..], more].concat());
    assert!(with(&[]).expect("Amazon's own").settings.s3().is_some());
    let plain = ("blobs.endpoint", "http://127.0.0.1:9000");
    let refused = with(&[plain]).err().expect("not over plain http").to_string();
    assert!(refused.starts_with("the command line: blobs.endpoint: "), "{refused}");
    let allowed = with(&[plain, ("blobs.allow_http", "true")]).expect("allowed").settings.s3();
    assert_eq!(allowed.and_then(|s3| s3.endpoint).as_deref(), Some(plain.1));
}

#[test]
fn no_secret_is_in_an_error_or_in_the_printed_configuration() {
    let url = "postgresql://me:tiger@h/d";
    let config = load(&[("LOGMILL_DATABASE_URL", url), ("LOGMILL_BLOBS_SECRET_KEY", "tiger")], &[]);
    let shown = config.expect("fine").redacted_toml().expect("shown");
    assert!(shown.contains("postgresql://me:***@h/d") && !shown.contains("tiger"), "{shown}");
    for url in ["tiger", "postgresql://me:ti#tiger@h/d"] {
        assert!(!refused(&[("LOGMILL_DATABASE_URL", url)], &[]).contains("tiger"));
    }
    let mut layers = Layers::defaults().expect("the defaults");
    for text in ["[blobs]\nsecret_key = 77123\n", "[blobs]\nsecret_key = 77123 77123\n"] {
        let error = layers.add_file(Path::new("f.toml"), text).expect_err("refused");
        assert!(!logmill_io::error_chain(&error).contains("77123"), "{error}");
    }
}

#[test]
fn a_syntax_error_names_file_and_line() {
    let mut layers = Layers::defaults().expect("the defaults");
    let error = layers.add_file(Path::new("f.toml"), "[work]\nslots = = 3\n").expect_err("refused");
    assert!(error.to_string().starts_with("f.toml:2: "), "{error}");
}

#[test]
fn an_address_that_other_machines_can_reach_needs_keys() {
    let open = [("server.listen", "0.0.0.0:8645")];
    let message = refused(&[], &open);
    assert!(
        message.starts_with("the defaults: server.keys: other machines can reach 0.0.0.0:8645"),
        "{message}"
    );
    let keys = ("server.keys", "me:0123456789abcdef:read");
    let settings = load(&[], &[open[0], keys]).expect("with keys").settings;
    assert!(!settings.server.limits().keys.is_empty());
    assert!(load(&[], &[("server.listen", "[::1]:1")]).is_ok(), "this machine alone");
    assert!(load(&[], &[("server.listen", "")]).expect("fine").settings.server.listen().is_none());
    let shown = load(&[], &[keys]).expect("fine").redacted_toml().expect("shown");
    assert!(!shown.contains("0123456789abcdef"), "{shown}");
}

#[test]
fn the_variables_of_the_ingesters_have_their_defaults_and_are_honoured() {
    let defaults = load(&[], &[]).expect("the defaults").settings;
    let (settings, roles) = (defaults.ingest(), defaults.ingest.roles());
    assert_eq!((settings.latest_workers, settings.latest_batch), (2, 1));
    assert_eq!((settings.history_workers, settings.history_batch), (5, 20));
    assert_eq!((settings.history_stop, settings.max_reorg_depth), (0, 1_000));
    assert!(roles.forward && roles.history);
    let given = [
        ("LATEST_WORKER_COUNT", "3"),
        ("LATEST_BATCH_SIZE", "4"),
        ("HISTORY_WORKER_COUNT", "6"),
        ("HISTORY_BATCH_SIZE", "7"),
        ("HISTORY_STOP_HEIGHT", "8"),
        ("MAX_REORG_DEPTH", "9"),
        ("ENABLE_FORWARD_INGESTER", "false"),
        ("ENABLE_HISTORY_INGESTER", "FALSE"),
        ("RAW_ONLY", "true"),
    ];
    let given = load(&given, &[]).expect("all fine").settings;
    let (settings, roles) = (given.ingest(), given.ingest.roles());
    assert_eq!((settings.latest_workers, settings.latest_batch), (3, 4));
    assert_eq!((settings.history_workers, settings.history_batch), (6, 7));
    assert_eq!((settings.history_stop, settings.max_reorg_depth), (8, 9));
    assert!(!roles.forward && !roles.history && given.ingest.raw_only && !defaults.ingest.raw_only);
    let wrong = refused(&[("LATEST_WORKER_COUNT", "0")], &[]);
    assert!(wrong.contains("LATEST_WORKER_COUNT"), "{wrong}");
}

#[test]
fn the_variables_of_the_derivers_have_their_defaults_and_are_honoured() {
    use logmill_pipeline::derive::DeriveSettings;

    let config = load(&[], &[]).unwrap();
    let (given, default) = (config.settings.derive.settings(), DeriveSettings::default());
    assert_eq!((given.live_chunk, given.head_backfill, given.history_chunk), (10, 100, 1_000));
    assert_eq!(format!("{given:?}"), format!("{default:?}"));
    let config = load(
        &[
            ("ENABLE_LIVE_DERIVERS", "false"),
            ("LIVE_DERIVERS_CHUNK", "3"),
            ("LIVE_DERIVERS_HEAD_BACKFILL_BLOCKS", "7"),
            ("ENABLE_HISTORY_DERIVERS", "false"),
            ("HISTORY_DERIVERS_CHUNK", "50"),
            ("HISTORY_DERIVERS_SLEEP_MS", "9"),
        ],
        &[],
    );
    let given = config.unwrap().settings.derive.settings();
    assert!(!given.live && !given.history);
    assert_eq!((given.live_chunk, given.head_backfill, given.history_chunk), (3, 7, 50));
    assert_eq!(given.history_sleep, std::time::Duration::from_millis(9));
    assert!(refused(&[("LIVE_DERIVERS_CHUNK", "0")], &[]).contains("LIVE_DERIVERS_CHUNK"));
    for (variable, processor) in [
        ("ENABLE_TOKEN_WORKER", "token_worker"),
        ("ENABLE_EVM_WORKER", "evm_worker"),
        ("ENABLE_META_WORKER", "meta_worker"),
        ("ENABLE_ACCOUNTS_WORKER", "accounts_worker"),
        ("ENABLE_FT_HOLDINGS_WORKER", "ft_holdings_worker"),
        ("ENABLE_NFT_OWNERSHIP_WORKER", "nft_ownership_worker"),
        ("ENABLE_TOKEN_METADATA_WORKER", "token_metadata_worker"),
        ("ENABLE_TX_CONTRACTS_WORKER", "tx_contracts_worker"),
        ("ENABLE_TX_METRICS_WORKER", "tx_metrics_worker"),
        ("ENABLE_STAKING_WORKER", "staking_worker"),
        ("ENABLE_DEFI_WORKER", "defi_worker"),
        ("ENABLE_DAILY_BALANCE_WORKER", "daily_balance_worker"),
        ("ENABLE_FEES_WORKER", "fees_worker"),
        ("ENABLE_NFT_ITEM_METADATA_WORKER", "nft_item_metadata_worker"),
        ("ENABLE_NFT_RECONCILER", "nft_ownership_reconciler"),
    ] {
        assert!(load(&[], &[]).unwrap().settings.derive.enables(processor), "{processor}");
        let off = load(&[(variable, "false")], &[]).unwrap();
        assert!(!off.settings.derive.enables(processor), "{variable}");
    }
}

#[test]
fn token_contracts_are_built_in_or_named_and_affect_only_the_tables_of_their_chain() {
    use alloy_primitives::address;
    use logmill_pipeline::derive::decoded::TokenSettings;
    use logmill_pipeline::processors;

    const COIN: alloy_primitives::Address = address!("0x00000000000000000000000000000000000000Aa");
    let tokens = |given: &str, chain_id: u64| {
        let set = [("LOGMILL_DERIVE_WRAPPED_NATIVE_TOKENS", given)];
        load(&set, &[]).expect("fine").settings.derive.tokens(chain_id)
    };
    let known = TokenSettings::known();
    assert_eq!(load(&[], &[]).expect("fine").settings.derive.tokens(1), *known);
    assert!(tokens("", 1).wrapped_native.is_empty());
    assert_eq!(tokens("", 1).early_nfts, known.early_nfts);
    assert_eq!(tokens(&COIN.to_string(), 5).wrapped_native, [COIN].into());
    let mut more = known.wrapped_native.clone();
    more.insert(COIN);
    let one = format!(" known , 137:{COIN},");
    assert_eq!(tokens(&one, 137).wrapped_native, more);
    assert_eq!(tokens(&one, 1), *known);
    assert_eq!(tokens("137:known", 1).wrapped_native, [].into());
    // The parameters of processors change with it: only on the named chain, and only those that read transfers.
    let changed = |chain_id: u64| -> Vec<&'static str> {
        let before = processors::Settings::of_chain(chain_id);
        let after = processors::Settings { tokens: tokens(&one, chain_id), ..before.clone() };
        let pairs = processors::all(&before).into_iter().zip(processors::all(&after));
        let pairs = pairs.filter(|(one, other)| one.parameters() != other.parameters());
        pairs.map(|(one, _)| one.name()).collect()
    };
    assert!(changed(1).is_empty());
    assert!(changed(137).contains(&"token_worker") && !changed(137).contains(&"evm_worker"));
    for wrong in ["0x1", "known,weth", "x:known", "137:", ":0x00", "-1:known"] {
        for key in ["derive.wrapped_native_tokens", "derive.early_nfts"] {
            let message = refused(&[], &[(key, wrong)]);
            assert!(message.contains(key), "{wrong}: {message}");
        }
    }
}

#[test]
fn senders_are_stored_if_tables_are_derived_unless_set_otherwise() {
    let check = |flags: &[(&str, &str)], expected: bool| {
        let settings = load(&[], flags).expect("fine").settings;
        assert_eq!(settings.ingest().store_senders, expected, "{flags:?}");
    };
    let raw = ("ingest.raw_only", "true");
    let (live, history) = (("derive.live", "false"), ("derive.history", "false"));
    let (store, recover) = (("ingest.senders", "store"), ("ingest.senders", "recover"));
    check(&[], true);
    check(&[live], true);
    check(&[history], true);
    check(&[live, history], false);
    check(&[raw], false);
    check(&[raw, store], true);
    check(&[recover], false);
    assert!(refused(&[], &[("ingest.senders", "node")]).contains("ingest.senders"));
}

/// The job of a collector with all its variables, except for `without`, and with those of `instead`.
fn collecting(without: &str, instead: &[(&str, &str)]) -> Result<super::collect::Job> {
    let all = [
        ("RPC_URL", "https://rpc.example/v1/SeCrEt"),
        ("ACTIVE_CHAIN", "137"),
        ("CONTRACT_ADDRESS", "0xbD6C7B0d2f68c2b7805d88388319cfB6EcB50eA9"),
        ("START_POINT", "78600000"),
    ];
    let mut variables: Vec<_> = all.into_iter().filter(|(name, _)| *name != without).collect();
    variables.extend_from_slice(instead);
    let settings = load(&variables, &[])?.settings;
    settings.collect.job(&settings)
}

#[test]
fn the_variables_of_the_collector_are_those_of_the_seed_with_its_defaults() {
    let job = collecting("", &[]).expect("all that is needed");
    assert_eq!(job.chain_id, 137);
    let settings = job.settings;
    assert_eq!((settings.start, settings.batch, settings.workers), (78_600_000, 100, 1));
    assert_eq!(settings.lease, Duration::from_secs(120));
    assert_eq!(settings.historical_poll, Duration::from_secs(5));
    assert_eq!(settings.realtime_poll, Duration::from_secs(60));
    assert_eq!(settings.contracts.len(), 1);
    let others = [
        ("BATCH_SIZE", "10"),
        ("JOB_LEASE_TTL_MS", "2000"),
        ("HISTORICAL_POLL_INTERVAL_MS", "20000"),
        ("REALTIME_POLL_INTERVAL_MS", "30000"),
        ("DEV_MULTIPLE_WORKERS", "TRUE"),
        ("APP_ENV", "Development"),
        ("API_PORT", "8080"),
    ];
    let settings = collecting("", &others).expect("fine").settings;
    assert_eq!((settings.batch, settings.workers), (10, 2));
    assert_eq!(settings.lease, Duration::from_secs(2));
    assert_eq!(settings.historical_poll, Duration::from_secs(20));
    assert_eq!(settings.realtime_poll, Duration::from_secs(30));
    let produced = [("DEV_MULTIPLE_WORKERS", "true"), ("APP_ENV", "production")];
    assert_eq!(collecting("", &produced).expect("fine").settings.workers, 1);
    let served = |variables: &[(&str, &str)]| {
        let settings = load(variables, &[]).expect("fine").settings;
        settings.collect.listen(&settings).to_string()
    };
    assert_eq!(served(&[]), "127.0.0.1:9999");
    assert_eq!(served(&[("API_PORT", "8080"), ("LOGMILL_SERVER_LISTEN", "")]), "127.0.0.1:8080");
}

#[test]
fn an_error_about_a_missing_collector_setting_names_its_variable() {
    let message = |without: &str, instead: &[(&str, &str)]| {
        let error = collecting(without, instead).expect_err("it is refused");
        logmill_io::error_chain(&error)
    };
    for name in ["RPC_URL", "ACTIVE_CHAIN", "CONTRACT_ADDRESS", "START_POINT"] {
        let message = message(name, &[]);
        let expected = format!("invalid chain config: {name} is not set");
        assert!(message.starts_with(&expected), "{message}");
    }
    let start = message("START_POINT", &[("START_POINT", "soon")]);
    assert!(start.contains("START_POINT must be a number"), "{start}");
    assert!(start.contains("not \"soon\""), "{start}");
    assert!(
        message("START_POINT", &[("START_POINT", "-1")]).contains("START_POINT must be a number")
    );
    let contract = message("CONTRACT_ADDRESS", &[("CONTRACT_ADDRESS", "0x12")]);
    assert!(contract.contains("CONTRACT_ADDRESS names \"0x12\""), "{contract}");
    for (name, value) in [
        ("ACTIVE_CHAIN", "polygon"),
        ("BATCH_SIZE", "many"),
        ("API_PORT", "70000"),
        ("APP_ENV", "staging"),
        ("DEV_MULTIPLE_WORKERS", "maybe"),
    ] {
        let message = message(name, &[(name, value)]);
        assert!(message.starts_with(&format!("the variable {name}: ")), "{message}");
    }
    assert!(message("", &[("BATCH_SIZE", "0")]).contains("collect.batch_size"));
    let url = message("RPC_URL", &[("RPC_URL", "ftp://rpc.example/SeCrEt")]);
    assert!(url.contains("RPC_URL") && !url.contains("SeCrEt"), "{url}");
}

#[test]
fn addresses_and_events_keep_their_case_and_a_start_may_be_a_number() {
    let url = [("RPC_URL", "https://rpc.example/v1/SeCrEt")];
    let nodes = load(&url, &[]).expect("fine").settings.chain.nodes().expect("a node");
    assert_eq!(nodes.len(), 1);
    assert!(!load(&url, &[]).expect("fine").redacted_toml().expect("TOML").contains("SeCrEt"));
    let event = "event FeesCollected(address indexed Token)";
    assert_eq!(load(&[("EVENT", event)], &[]).expect("fine").settings.collect.event, event);
    let events = |text: &str| {
        let settings = load(&[("EVENT", text)], &[]).expect("fine").settings;
        settings.collect.events().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(events(""), [""], "fees");
    assert_eq!(
        events(" event A(uint256 x) ; event B();; event A(uint256 x);"),
        ["event A(uint256 x)", "event B()"]
    );
    let many: Vec<String> = (0..17).map(|number| format!("event E{number}()")).collect();
    assert!(load(&[("EVENT", &many.join(";"))], &[]).is_err(), "too many");
    let mut layers = Layers::defaults().expect("the defaults");
    layers.add_file(Path::new("f.toml"), "[collect]\nstart_point = 5\n").expect("fine");
    layers.settings().expect("fine");
}

#[test]
fn a_mongo_uri_causes_a_warning_that_says_where_tables_are() {
    let config = load(&[("MONGO_URI", "mongodb://me:sesame@h/d")], &[]).expect("fine");
    let message = config.warnings.concat();
    assert!(message.contains("MONGO_URI") && message.contains("database.url"), "{message}");
    assert!(!message.contains("sesame"));
    assert!(load(&[], &[]).expect("fine").warnings.is_empty());
}

#[test]
fn meters_are_configured_in_a_file_by_variables_and_by_flags() {
    use logmill_meter::period::PeriodKind;
    use logmill_meter::settings::Op;

    assert!(load(&[], &[]).unwrap().settings.meter.settings().is_none(), "nothing is metered");
    let mut layers = Layers::defaults().unwrap();
    let file = r#"
        [meter]
        periods = ["daily", { name = "billing", anchor = "2026-01-15T00:00", length = "1 month" }]
        zone = "Europe/Berlin"
        [meter.events."api.calls"]
        op = "sum"
        also = ["percentile"]
        dimensions = ["region"]
        [meter.events.seats]
        op = "time_weighted"
        [[meter.alerts]]
        name = "many"
        event_type = "api.calls"
        period = "daily"
        thresholds = ["1000", "5000.5"]
    "#;
    layers.add_file(Path::new("f.toml"), file).expect("a fine file");
    let meter = layers.settings().unwrap().meter;
    assert!(meter.fault().is_none());
    let settings = meter.settings().expect("event types");
    assert_eq!(settings.events["api.calls"].op, Op::Sum);
    assert_eq!(settings.events["seats"].op, Op::TimeWeighted);
    assert_eq!((settings.periods[0].name(), settings.periods[1].name()), ("daily", "billing"));
    assert_eq!((settings.zone.as_str(), settings.alerts.len()), ("Europe/Berlin", 1));
    let events = r#"{ "a.b" = { op = "max" } }"#;
    for (variables, flags) in [
        (
            vec![("LOGMILL_METER_EVENTS", events), ("LOGMILL_METER_PERIODS", "hourly, yearly")],
            vec![],
        ),
        (vec![], vec![("meter.events", events), ("meter.periods", "[\"hourly\", \"yearly\"]")]),
    ] {
        let settings = load(&variables, &flags).unwrap().settings.meter.settings().unwrap();
        assert_eq!(settings.events["a.b"].op, Op::Max);
        assert_eq!(settings.periods, [PeriodKind::Hourly, PeriodKind::Yearly]);
    }
    let default =
        load(&[], &[("meter.events", events)]).unwrap().settings.meter.settings().unwrap();
    let events = default.events.clone();
    assert_eq!(default, logmill_meter::Settings { events, ..logmill_meter::Settings::default() });
}

#[test]
fn an_error_about_the_meter_names_the_key_and_the_reason() {
    for (key, value, why) in [
        ("meter.events", r#"{ a = { op = "total" } }"#, "unknown variant `total`"),
        ("meter.events", r#"{ a = { op = "sum", colour = 1 } }"#, "unknown field `colour`"),
        ("meter.events", r#"{ a = { op = "sum", scale = 99 } }"#, "scale is 99"),
        ("meter.events", "a", "expected a table of event types"),
        ("meter.periods", "daily,minutely", "minutely"),
        ("meter.periods", "daily,daily", "daily is listed twice"),
        ("meter.zone", "Mars/Base", "is not a time zone"),
        ("meter.max_batch", "0", "not between 1 and"),
        ("meter.delivery.allowed", "10.0.0.0/99", "is not a network"),
        ("meter.event", "x", "unknown key"),
    ] {
        let message = refused(&[], &[(key, value)]);
        assert!(message.contains(key) && message.contains(why), "{key}={value}: {message}");
    }
    assert!(refused(&[("LOGMILL_METER_EVENT", "x")], &[]).contains("LOGMILL_METER_EVENT"));
    let set = load(&[("DRY_RUN", "true")], &[]).unwrap().settings;
    let dry = set.meter.delivery.settings(set.work.lease());
    assert!(dry.dry_run);
}

#[test]
fn fees_of_a_chain_without_a_known_or_configured_contract_are_assumed() {
    let assumed = |chain_id: u64, flags: &[(&str, &str)]| {
        let settings = load(&[], flags).expect("fine").settings;
        settings.collect.assumed_fees(&settings, chain_id)
    };
    let said = assumed(31_337, &[]).expect("nothing is known of it");
    assert!(said.contains("chain 31337") && said.contains("collect.contract_address"), "{said}");
    assert_eq!(assumed(137, &[]), None, "its contract is known");
    let contract = ("collect.contract_address", "0xbd6c7b0d2f68c2b7805d88388319cfb6ecb50ea9");
    assert_eq!(assumed(31_337, &[contract]), None, "its contract is configured");
    let of_another = assumed(31_337, &[contract, ("chain.id", "137")]);
    assert!(of_another.is_some(), "the contract of another chain");
}

#[test]
fn a_webhook_of_an_unknown_kind_of_message_is_refused_with_the_known_ones() {
    let with = |events: &str| {
        format!(r#"[{{ url = "https://example.com/", secret = "0123456789abcdef", {events} }}]"#)
    };
    load(&[], &[("meter.webhooks", &with(r#"events = ["alert.triggered"]"#))]).expect("a kind");
    let said = refused(&[], &[("meter.webhooks", &with(r#"events = ["alert.fired"]"#))]);
    assert!(said.contains("webhook 1: events: no such kind of message"), "{said}");
    assert!(said.contains(&logmill_meter::webhooks::MESSAGE_KINDS.join(", ")), "{said}");
}

#[test]
fn no_webhook_secret_is_printed() {
    let webhooks = r#"[{ url = "https://example.com/sesame", secret = "sesame-0123456789" }]"#;
    let config = load(&[("LOGMILL_METER_WEBHOOKS", webhooks)], &[]).unwrap();
    let shown = config.redacted_toml().unwrap();
    assert!(shown.contains("example.com") && !shown.contains("sesame"), "{shown}");
    assert!(!format!("{:?}", config.settings.meter).contains("sesame-"));
    assert!(!config.settings.meter.redacted_json().to_string().contains("sesame"));
    for wrong in [
        r#"[{ url = "https://example.com/", secret = "sesame" }]"#,
        r#"[{ url = "sesame", secret = "0123456789abcdef" }]"#,
        r#"[{ url = "https://example.com/", secret = 77123 }]"#,
        r#"[{ url = "https://example.com/", secret = "sesame", colour = "sesame" }]"#,
        "sesame",
    ] {
        let message = refused(&[], &[("meter.webhooks", wrong)]);
        assert!(message.contains("meter.webhooks"), "{message}");
        assert!(!message.contains("sesame") && !message.contains("77123"), "{message}");
    }
}

#[test]
fn the_configuration_of_usage_is_what_the_document_says() {
    let flags = [
        ("meter.events", r#"{ a = { op = "sum" } }"#),
        (
            "meter.periods",
            r#"["daily", { name = "x", anchor = "2026-01-15T00:00", length = "1 month" }]"#,
        ),
        ("meter.webhooks", r#"[{ url = "https://example.com/", secret = "0123456789abcdef" }]"#),
    ];
    let shown = load(&[], &flags).expect("fine").settings.meter.redacted_json();
    let document = schema::openapi();
    let expected = &document["components"]["schemas"]["MeterConfig"];
    schema::check(document, expected, &shown, "/config");
}
