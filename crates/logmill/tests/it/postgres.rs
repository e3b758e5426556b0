//! PostgreSQL: commands go to it straight, and what is wrong with the way there is said without the password.

use logmill_sim::postgres::{PostgresServer, free_port};

use crate::process::{Place, wait_until};

fn place(url: &str) -> Place {
    Place::with(&[&format!("database.url={url}"), "database.schema=logmill_test"])
}

#[test]
fn commands_and_servers_share_a_database() {
    let server = PostgresServer::start();
    let place = place(&server.url());
    assert_eq!(place.run(&["jobs", "enqueue", "k", "1"]).answer(), "created");
    let (one, two) = (place.serve(), place.serve());
    assert_eq!(place.run(&["jobs", "enqueue", "logmill.maintenance", "now"]).answer(), "created");
    wait_until("one of them did it", || place.count("logmill.maintenance", "done") > 0);
    assert_eq!(place.run(&["jobs", "cancel", "k", "1"]).answer(), "cancelled");
    assert_eq!(place.count("k", "cancelled"), 1);
    assert!(one.terminate().success());
    assert!(two.terminate().success());
    assert!(!place.data().join("logmill.lock").exists(), "the folder is nobody's");
}

#[test]
fn a_wrong_password_is_said_and_not_shown() {
    let server = PostgresServer::start_with_password();
    assert_eq!(place(&server.url()).run(&["jobs", "enqueue", "k", "1"]).answer(), "created");
    let place = place(&server.url_with_password("sesame"));
    for arguments in [&["run"][..], &["jobs", "status"], &["jobs", "enqueue", "k", "2"]] {
        let refused = place.run(arguments);
        refused.refused(1, &["password authentication failed"]);
        assert!(refused.stderr.contains("hint: check user and password"), "{refused:?}");
        assert!(!format!("{refused:?}").contains("sesame"), "{refused:?}");
    }
}

#[test]
fn a_server_that_can_not_be_reached_is_said() {
    let url = format!("database.url=postgresql://me:sesame@127.0.0.1:{}/none", free_port());
    let place = Place::with(&[&url, "database.schema=logmill_test", "ready.start_wait_ms=600"]);
    for arguments in [&["run"][..], &["jobs", "status"], &["jobs", "enqueue", "k", "1"]] {
        let refused = place.run(arguments);
        refused.refused(1, &["postgresql", "refused"]);
        assert!(refused.stderr.contains("hint: check that PostgreSQL runs"), "{refused:?}");
        assert!(!format!("{refused:?}").contains("sesame"), "{refused:?}");
    }
}
