//! Small disks, and disks whose syncs fail.
//!
//! Guarantees: both are removed with the test. Leaves to others: how a store should react.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace_root;

/// A small disk in memory.
#[derive(Debug)]
pub struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts a disk of this size; none if this process may not mount.
    pub fn mount(size_mib: u32) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size_mib}m"), "logmill-small-disk"])
            .arg(folder.path())
            .output()
            .is_ok_and(|mount| mount.status.success());
        mounted.then_some(Self { folder })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a thread of a store may close its file shortly after the last handle is dropped.
        let _ = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}

/// Folder of the child process of a test; set only there.
const CHILD_FOLDER: &str = "LOGMILL_FAILING_SYNC_FOLDER";
/// The file that makes syncs fail once it exists; see `failing_sync.c`.
const ARMED: &str = "LOGMILL_FAILING_SYNC";

/// Runs `body` with an empty folder and with the path of the file that makes syncs fail. The syncs are those of the C
/// library, so only a process started with a shim sees them fail: the calling test, whose full name is `test` and
/// which must do nothing else, runs itself again as a child process.
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

/// Builds the shim that makes syncs fail in a process started with it in `LD_PRELOAD`, once the file named by
/// `LOGMILL_FAILING_SYNC` exists, and delays each by `LOGMILL_SYNC_MS` milliseconds.
///
/// # Panics
/// If there is no C compiler.
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
