//! Peak memory of this process, from `/proc`.

use std::fs;

/// Resets the peak, for the next measurement. Without permission the old one stays.
pub fn forget_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Peak resident memory since [`forget_peak`].
pub fn peak_bytes() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib: u64 = kib.ok_or_else(|| anyhow::anyhow!("no VmHWM in /proc/self/status"))?.parse()?;
    Ok(kib * 1024)
}
