//! Measurements of this process and of folders.

use std::collections::BTreeMap;
use std::path::Path;

use finalized_log_index::B256;
use finalized_log_index::workload::Workload;
use roaring::RoaringBitmap;

/// Ticks per second in `/proc/self/stat`; a constant of Linux.
const TICKS_PER_S: f64 = 100.0;

/// CPU time of this process so far, user and system.
pub(crate) fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("this is Linux");
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().expect("a number");
    (ticks(11) + ticks(12)) / TICKS_PER_S
}

/// Cost of indexing `topic0` exactly, per log: the size of the bitmaps of all its values over at least `logs_max`
/// logs.
pub(crate) fn topic0_bits_per_log(chain: Workload, logs_max: u32) -> f64 {
    let mut bitmaps: BTreeMap<B256, RoaringBitmap> = BTreeMap::new();
    let mut id = 0;
    for block in chain {
        for log in &block.logs {
            if let Some(topic) = log.topics.first() {
                bitmaps.entry(*topic).or_default().insert(id);
            }
            id += 1;
        }
        if id >= logs_max {
            break;
        }
    }
    let bytes: usize = bitmaps.values().map(RoaringBitmap::serialized_size).sum();
    bytes as f64 * 8.0 / f64::from(id)
}

/// Peak memory of this process.
pub(crate) fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("it is there");
    let kib: u64 = line.split_whitespace().nth(1).expect("a number").parse().expect("a number");
    kib << 10
}

/// Total size of all files below a folder.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let sizes = entries.map(|entry| {
        let entry = entry.expect("it can be read");
        let metadata = entry.metadata().expect("it can be read");
        if metadata.is_dir() { folder_bytes(&entry.path()) } else { metadata.len() }
    });
    sizes.sum()
}
