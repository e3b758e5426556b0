//! The machine and the versions behind the figures.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::postgres::run;

/// Properties of the machine that affect the figures.
pub fn describe(data_parent: &Path) -> Value {
    json!({
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "cpu": field("/proc/cpuinfo", "model name"),
        "memory_bytes": memory_bytes(),
        "kernel": line("/proc/sys/kernel/osrelease"),
        "data_filesystem": filesystem(data_parent),
        "load_average_1m_at_start": load_average_1m(),
    })
}

/// The compiler that built this program.
pub fn rustc_version() -> &'static str {
    env!("BENCH_RUSTC")
}

/// Version of a crate in this program's lock file.
pub fn crate_version(name: &str) -> String {
    let wanted = format!("name = \"{name}\"");
    let mut lines = include_str!("../Cargo.lock").lines().skip_while(|line| *line != wanted);
    let version = lines.nth(1).and_then(|line| line.strip_prefix("version = "));
    version.map_or("unknown", |version| version.trim_matches('"')).to_owned()
}

fn memory_bytes() -> Option<u64> {
    let text = field("/proc/meminfo", "MemTotal")?;
    let kib: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn load_average_1m() -> Option<f64> {
    line("/proc/loadavg")?.split_whitespace().next()?.parse().ok()
}

/// Distinguishes a disk from a folder in memory, where fsync costs nothing.
fn filesystem(folder: &Path) -> Option<String> {
    let output = run(Command::new("stat").args(["-f", "-c", "%T"]).arg(folder)).ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn line(file: &str) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_lock_file() {
        assert!(crate_version("apalis-postgres").starts_with("1.0"));
        assert_eq!(crate_version("no-such-crate"), "unknown");
    }
}
