//! Commits per second that the server reaches with `pgbench`, as a yardstick for the queues.

use std::io::Write;

use anyhow::Context;

use crate::postgres::{Server, run};

/// A separate database for `pgbench`.
const DATABASE: &str = "pgbench";

/// Far more rows than connections, so that two clients rarely update the same one.
const ROWS: u32 = 100_000;

/// Scale of the built-in script: 100 000 accounts each.
const SCALE: u32 = 10;

/// Result of one round of `pgbench`.
#[derive(Clone, Copy, Debug)]
pub struct Commits {
    /// One `UPDATE` of one row by primary key per transaction.
    pub update_per_s: f64,
    /// The built-in script of `-N`: update, select, insert.
    pub simple_update_per_s: f64,
}

pub async fn prepare(server: &Server) -> anyhow::Result<()> {
    server.create(DATABASE).await?;
    let mut init = server.command("pgbench");
    init.args(["-i", "-q", "-s", &SCALE.to_string()]);
    run(connection(&mut init, server))?;
    let client = server.connect(DATABASE).await?;
    client
        .batch_execute(&format!(
            "CREATE TABLE counter (id int PRIMARY KEY, n bigint NOT NULL);
             INSERT INTO counter SELECT id, 0 FROM generate_series(1, {ROWS}) AS id;"
        ))
        .await?;
    // Outside the transaction of the batch above.
    client.batch_execute("VACUUM ANALYZE counter").await?;
    Ok(())
}

/// Runs both scripts for `seconds` each.
pub async fn measure(server: &Server, connections: usize, seconds: u64) -> anyhow::Result<Commits> {
    let mut script = tempfile::Builder::new().suffix(".sql").tempfile()?;
    write!(script, "\\set id random(1, {ROWS})\nUPDATE counter SET n = n + 1 WHERE id = :id;\n")?;
    script.flush()?;
    // Must be readable for the server's user.
    std::fs::set_permissions(script.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    let file = script.path().to_string_lossy().into_owned();
    Ok(Commits {
        update_per_s: commits_per_s(server, &["-f", &file], connections, seconds).await?,
        simple_update_per_s: commits_per_s(server, &["-N"], connections, seconds).await?,
    })
}

async fn commits_per_s(
    server: &Server,
    script: &[&str],
    connections: usize,
    seconds: u64,
) -> anyhow::Result<f64> {
    let client = server.connect(DATABASE).await?;
    client.batch_execute("CHECKPOINT").await?;
    let threads = connections.min(std::thread::available_parallelism()?.get());
    let mut bench = server.command("pgbench");
    bench.args(["-n", "-M", "prepared"]).args(script);
    bench.args(["-c", &connections.to_string(), "-j", &threads.to_string()]);
    bench.args(["-T", &seconds.to_string()]);
    connection(&mut bench, server);
    let output = tokio::task::spawn_blocking(move || run(&mut bench)).await??;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    parse_tps(&text).with_context(|| format!("reading pgbench's answer:\n{text}"))
}

fn connection<'a>(
    command: &'a mut std::process::Command,
    server: &Server,
) -> &'a mut std::process::Command {
    command.args(["-h", "127.0.0.1", "-p", &server.port().to_string(), "-U", "postgres", DATABASE])
}

fn parse_tps(text: &str) -> anyhow::Result<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix("tps = ")).context("no tps line")?;
    Ok(rest.split_whitespace().next().unwrap_or_default().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_the_tps_line() {
        let text = "latency average = 1.2 ms\ntps = 6543.21 (without initial connection time)\n";
        assert_eq!(parse_tps(text).unwrap(), 6543.21);
        assert!(parse_tps("nothing").is_err());
    }
}
