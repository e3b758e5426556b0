//! Disks that are small, and disks whose syncs fail.
//!
//! Guarantees: both are gone with the test. Leaves to others: what a store should make of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace_root;

/// A small disk in memory.
#[derive(Debug)]
pub struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// A disk of this size; nothing if this process may not mount.
    pub fn mount(size_mib: u32) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size_mib}m"), "logmill-small-disk"])
            .arg(folder.path())
            .output()
            .is_ok_and(|mount| mount.status.success());
        mounted.then_some(Self { folder })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a thread of a store may close its file a moment after the last handle is gone.
        let _ = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}

/// Where the second process of a test works; set only there.
const CHILD_FOLDER: &str = "LOGMILL_FAILING_SYNC_FOLDER";
/// The file that makes syncs fail; see `failing_sync.c`.
const ARMED: &str = "LOGMILL_FAILING_SYNC";

/// Runs `body` with an empty folder and with the file that makes syncs fail. The syncs are those of the C library, so
/// only a process that was started with a shim can see them fail: the calling test, which has this full name and
/// does nothing else, runs itself again in one.
pub fn with_failing_syncs(test: &str, body: impl FnOnce(&Path, &Path)) {
    if let Some(folder) = std::env::var_os(CHILD_FOLDER) {
        let armed = std::env::var_os(ARMED).expect("set with the folder");
        return body(Path::new(&folder), Path::new(&armed));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    std::fs::create_dir(&data).expect("a folder");
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env("LD_PRELOAD", failing_sync_shim(folder.path()))
        .env(CHILD_FOLDER, data)
        .env(ARMED, folder.path().join("armed"))
        .output()
        .expect("it starts again");
    let said = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

/// Builds what makes syncs fail for a process that is started with it in `LD_PRELOAD`, once the file that
/// `LOGMILL_FAILING_SYNC` names exists.
///
/// # Panics
/// If there is no compiler.
pub fn failing_sync_shim(folder: &Path) -> PathBuf {
    let source = workspace_root().join("crates/sim/tests/it/failing_sync.c");
    let shim = folder.join("failing_sync.so");
    let built = Command::new("gcc")
        .args(["-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&shim, &source])
        .arg("-ldl")
        .status()
        .expect("gcc runs");
    assert!(built.success(), "gcc builds the shim");
    shim
}
