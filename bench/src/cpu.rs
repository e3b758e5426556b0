//! CPU seconds of this process and of a PostgreSQL server, from `/proc`.

use std::fs;

/// User and system seconds of this process.
pub fn of_client() -> anyhow::Result<f64> {
    let stat = Stat::read("self")?;
    Ok(seconds(stat.own_ticks))
}

/// User and system seconds of another process, including children that it has reaped.
pub fn of_process(pid: u32) -> anyhow::Result<f64> {
    let stat = Stat::read(&pid.to_string())?;
    Ok(seconds(stat.own_ticks + stat.reaped_ticks))
}

/// User and system seconds of the server: the postmaster, its living children, and those it has already reaped, so
/// that the sum never decreases when a backend exits.
pub fn of_server(postmaster: u32) -> anyhow::Result<f64> {
    let parent = Stat::read(&postmaster.to_string())?;
    let mut ticks = parent.own_ticks + parent.reaped_ticks;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
        else {
            continue;
        };
        // A process may end between listing and reading; the postmaster then accounts for it.
        if let Ok(stat) = Stat::read(pid)
            && stat.parent == postmaster
        {
            ticks += stat.own_ticks;
        }
    }
    Ok(seconds(ticks))
}

struct Stat {
    parent: u32,
    own_ticks: u64,
    reaped_ticks: u64,
}

impl Stat {
    fn read(pid: &str) -> anyhow::Result<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat"))?)
    }

    /// The command name is in parentheses and may contain anything: fields are counted from the last parenthesis.
    fn parse(stat: &str) -> anyhow::Result<Self> {
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |n: usize| -> anyhow::Result<u64> {
            let text = fields.get(n).ok_or_else(|| anyhow::anyhow!("short stat line: {stat}"))?;
            Ok(text.parse()?)
        };
        Ok(Self {
            parent: u32::try_from(field(1)?)?,
            own_ticks: field(11)? + field(12)?,
            reaped_ticks: field(13)? + field(14)?,
        })
    }
}

#[allow(clippy::cast_precision_loss)] // Ticks of a run are far below 2^52.
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_spaces_and_parentheses_is_skipped() {
        let stat = Stat::parse("7 (a b) c) S 3 7 7 0 -1 0 0 0 0 0 11 5 2 1 20 0 1 0 9").unwrap();
        assert_eq!((stat.parent, stat.own_ticks, stat.reaped_ticks), (3, 16, 3));
    }
}
