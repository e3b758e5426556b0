//! Wrong addresses: each is refused with a clear error that never contains the password.

use logmill_io::sql::PostgresSettings;
use logmill_io::{ErrorKind, OsEntropy, Sql, SystemClock};
use logmill_sim::postgres::{PostgresServer, free_port};

const SECRET: &str = "hunter2";

#[tokio::test]
async fn a_wrong_address_is_refused_clearly_and_without_its_password() {
    let server = PostgresServer::start_with_password();
    let right = server.url();
    let wrong_password = server.url_with_password(SECRET);
    let no_server = format!("postgresql://postgres:{SECRET}@127.0.0.1:{}/postgres", free_port());
    let cases = [
        (wrong_password, ErrorKind::Invalid, "password authentication failed"),
        (format!("{right}_not"), ErrorKind::Invalid, "\"postgres_not\" does not exist"),
        (right.replace(":right@", "@"), ErrorKind::Invalid, "password missing"),
        (right + "?sslmode=require", ErrorKind::Invalid, "TLS"),
        (no_server, ErrorKind::Transient, "refused"),
        (format!("postgresql://u:{SECRET}@127.0.0.1:x/y"), ErrorKind::Invalid, "database URL"),
        (format!("postgresql://u:{SECRET}"), ErrorKind::Invalid, "database URL"),
        (format!("postgresql://u:p@127.0.0.1/y?{SECRET}=1"), ErrorKind::Invalid, "database URL"),
        (format!("host=127.0.0.1 password=a {SECRET}=b"), ErrorKind::Invalid, "database URL"),
        (format!("host=127.0.0.1 password=a {SECRET}"), ErrorKind::Invalid, "database URL"),
        (format!("u:{SECRET}@127.0.0.1"), ErrorKind::Invalid, "database URL"),
        (format!("mysql://u:{SECRET}@127.0.0.1"), ErrorKind::Invalid, "database URL"),
    ];
    for (url, kind, part) in cases {
        let settings = PostgresSettings::new(url.clone());
        assert!(!format!("{settings:?}").contains(SECRET));
        let refused = Sql::postgres(&settings, SystemClock::shared(), OsEntropy::shared()).await;
        let refused = refused.expect_err("refused");
        let (chain, debug) = (refused.chain(), format!("{refused:?}"));
        assert_eq!(refused.kind(), kind, "{url}: {chain}");
        assert!(chain.contains(part), "{url}: {chain}");
        assert!(!chain.contains(SECRET) && !debug.contains(SECRET), "{chain} {debug}");
    }
}

#[tokio::test]
async fn an_open_handle_does_not_show_its_password() {
    let server = PostgresServer::start_with_password();
    let mut settings = PostgresSettings::new(server.url());
    settings.schema = Some("Robert'); DROP TABLE".to_owned());
    let open = Sql::postgres(&settings, SystemClock::shared(), OsEntropy::shared()).await;
    let refused = open.expect_err("not a plain name");
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");

    settings.schema = Some("plain".to_owned());
    let sql = Sql::postgres(&settings, SystemClock::shared(), OsEntropy::shared()).await;
    let sql = sql.expect("the right password");
    let shown = sql.write(|tx| async move { Ok::<_, logmill_io::Error>(format!("{tx:?}")) });
    let shown = shown.await.expect("a transaction");
    assert!(!shown.contains("right") && !format!("{sql:?}").contains("right"), "{shown}");
}
