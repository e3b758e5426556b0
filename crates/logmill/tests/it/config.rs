//! The configuration of a process: files, variables, flags, and rejected values.

use crate::process::{LOGMILL, Sandbox, command, finish};

#[test]
fn a_file_in_the_data_folder_a_variable_and_a_flag_are_all_read() {
    let sandbox = Sandbox::with(&[]);
    std::fs::create_dir_all(sandbox.data()).expect("the folder is made");
    let file = "[work]\nslots = 11\nlease_ms = 50000\n[blobs]\nsecret_key = \"sesame\"\n";
    std::fs::write(sandbox.data().join("logmill.toml"), file).expect("written");
    let mut check = command(LOGMILL, sandbox.root());
    check
        .args(["config", "check", "--set", "work.slow_poll_ms=7000", "--data"])
        .arg(sandbox.data());
    check.env("LOGMILL_WORK_SLOTS", "12");
    check.env("LOGMILL_DATABASE_URL", "postgresql://me:sesame@h/d");
    let ended = finish(&mut check);
    let shown: toml::Table = ended.answer().parse().expect("TOML");
    assert_eq!(shown["work"]["slots"].as_integer(), Some(12));
    assert_eq!(shown["work"]["lease_ms"].as_integer(), Some(50_000));
    assert_eq!(shown["work"]["slow_poll_ms"].as_integer(), Some(7_000));
    assert_eq!(shown["database"]["url"].as_str(), Some("postgresql://me:***@h/d"));
    assert_eq!(shown["blobs"]["secret_key"].as_str(), Some("***"));
    assert!(!format!("{ended:?}").contains("sesame"), "{ended:?}");
}

#[test]
fn a_file_of_the_current_folder_is_read_when_there_is_no_other() {
    let sandbox = Sandbox::with(&[]);
    std::fs::write(sandbox.root().join("logmill.toml"), "[work]\nslots = 11\n").expect("written");
    let shown: toml::Table = sandbox.run(&["config", "check"]).answer().parse().expect("TOML");
    assert_eq!(shown["work"]["slots"].as_integer(), Some(11));
}

#[test]
fn an_unknown_key_is_refused_with_its_name_and_file() {
    let sandbox = Sandbox::with(&[]);
    std::fs::write(sandbox.root().join("mine.toml"), "[database]\naddress = \"x\"\n")
        .expect("written");
    for arguments in [&["config", "check"][..], &["run"], &["jobs", "status"]] {
        let refused = sandbox.run(&[arguments, &["--config", "mine.toml"]].concat());
        refused.assert_refused(2, &["mine.toml", "database.address"]);
        assert!(refused.stderr.contains("hint: `logmill config default`"), "{refused:?}");
    }
    assert!(!sandbox.data().exists(), "nothing was touched");
}

#[test]
fn an_invalid_value_is_refused_with_its_key_and_source() {
    let sandbox = Sandbox::with(&[]);
    let check = |setting: &str, message: &[&str]| {
        sandbox.run(&["config", "check", "--set", setting]).assert_refused(2, message);
    };
    check("work.slots=none", &["command line", "work.slots"]);
    check("work.slots=0", &["work.slots", "1 and 1000"]);
    check("database.durability=maybe", &["database.durability", "full", "relaxed"]);
    check("database.url=mysql://h/d", &["database.url", "postgresql://"]);
    check("log.level=loud", &["log.level", "loud"]);
    check("server.trusted_proxies=10.0.0.1, here", &["server.trusted_proxies", "here"]);
    check("server.health_listen=here", &["server.health_listen", "here"]);
    check("server.max_websockets=2000", &["server.max_websockets", "1024"]);
    check("nonsense", &["--set", "expected KEY=VALUE"]);
    sandbox
        .run(&["config", "check", "--config", "none.toml"])
        .assert_refused(2, &["none.toml", "No such file"]);
}

#[test]
fn the_default_file_is_printed_and_changes_nothing_when_used() {
    let sandbox = Sandbox::with(&[]);
    let printed = sandbox.run(&["config", "default"]);
    std::fs::write(sandbox.root().join("mine.toml"), printed.answer()).expect("written");
    let values = |arguments: &[&str]| {
        let ended = finish(command(LOGMILL, sandbox.root()).args(arguments));
        ended.answer().parse::<toml::Table>().expect("TOML")
    };
    assert_eq!(values(&["config", "check", "--config", "mine.toml"]), values(&["config", "check"]));
}

#[test]
fn log_level_is_honoured() {
    let sandbox = Sandbox::with(&[]);
    let mut check = command(LOGMILL, sandbox.root());
    let ended = finish(check.args(["config", "check"]).env("LOG_LEVEL", "WARN"));
    let shown: toml::Table = ended.answer().parse().expect("TOML");
    assert_eq!(shown["log"]["level"].as_str(), Some("warn"));
}
