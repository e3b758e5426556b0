//! Failing disks and folders: a clear error, an exit code other than 0, and no lost data.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use logmill_io::sql::{Execute, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock, params};
use tempfile::TempDir;

use crate::process::{CommandOutput, LOGMILL, Sandbox, Server, command, finish};

/// A small file system, unmounted on drop.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// Returns `None` if mounting is not permitted here.
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills the disk; returns the file that does.
    fn fill(&self) -> PathBuf {
        let file = self.path().join("filler");
        // It fails because the disk becomes full, as intended.
        let _ = std::fs::write(&file, vec![1; 64 << 20]);
        file
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(self.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

fn on(disk: &SmallDisk, arguments: &[&str]) -> Command {
    let mut command = command(LOGMILL, disk.path());
    command.args(arguments).arg("--data").arg(disk.path().join("data"));
    command
}

fn enqueue(disk: &SmallDisk, key: &str) -> CommandOutput {
    let payload = format!("\"{}\"", "x".repeat(60_000));
    finish(&mut on(disk, &["jobs", "enqueue", "k", key, "--payload", &payload]))
}

#[test]
fn a_full_disk_is_named_and_acknowledged_jobs_are_kept() {
    let Some(disk) = SmallDisk::mount("8m") else {
        return logmill_sim::skip("mounting a small file system is not permitted");
    };
    let server = Server::start(&mut on(&disk, &["run"]));
    assert_eq!(enqueue(&disk, "first").answer(), "created");
    let filler = disk.fill();
    let mut acknowledged = 1;
    let refused = loop {
        let ended = enqueue(&disk, &format!("full-{acknowledged}"));
        if ended.code != Some(0) {
            break ended;
        }
        acknowledged += 1;
        assert!(acknowledged < 1_000, "the disk is not full");
    };
    refused.assert_refused(1, &["full"]);
    assert!(refused.stderr.contains("hint: free some space"), "{refused:?}");
    let status = finish(&mut on(&disk, &["jobs", "status", "--json"])).json();
    assert_eq!(status["kinds"][0]["jobs"], acknowledged, "reading still works");
    std::fs::remove_file(filler).expect("removed");
    assert_eq!(enqueue(&disk, "later").answer(), "created", "and goes on when there is space");
    assert!(server.terminate().success());
    let status = finish(&mut on(&disk, &["jobs", "status", "--json"])).json();
    assert_eq!(status["kinds"][0]["jobs"], acknowledged + 1);
}

#[test]
fn a_server_does_not_start_on_a_full_disk() {
    let Some(disk) = SmallDisk::mount("1m") else {
        return logmill_sim::skip("mounting a small file system is not permitted");
    };
    let filler = disk.fill();
    let refused = finish(&mut on(&disk, &["run"]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("No space left") || refused.stderr.contains("full"),
        "{refused:?}"
    );
    std::fs::remove_file(filler).expect("removed");
    assert!(Server::start(&mut on(&disk, &["run"])).terminate().success(), "nothing is broken");
}

/// Runs the program as a user who owns no files, from a folder where that user can execute it.
fn as_nobody(programs: &TempDir, folder: &Path, arguments: &[&str], data: &Path) -> CommandOutput {
    let program = programs.path().join("logmill");
    if !program.exists() {
        std::fs::copy(LOGMILL, &program).expect("copied");
        for path in [programs.path(), &program] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("set");
        }
    }
    let mut setpriv = command("setpriv", folder);
    setpriv.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    finish(setpriv.arg(&program).args(arguments).arg("--data").arg(data))
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

#[test]
fn a_folder_that_is_not_writable_is_named() {
    if !is_root() {
        return logmill_sim::skip("becoming another user is not permitted");
    }
    let programs = tempfile::tempdir().expect("a temporary folder");
    let sandbox = Sandbox::new();
    std::fs::set_permissions(sandbox.root(), std::fs::Permissions::from_mode(0o755)).expect("set");
    let run = |arguments: &[&str]| as_nobody(&programs, Path::new("/"), arguments, &sandbox.data());
    let data = sandbox.data().display().to_string();
    // The folder does not exist and cannot be created.
    run(&["run"]).assert_refused(1, &[&data, "Permission denied"]);
    run(&["jobs", "enqueue", "k", "1"]).assert_refused(1, &[&data, "Permission denied"]);
    // The folder belongs to another user.
    sandbox.run(&["jobs", "enqueue", "k", "kept"]).answer();
    let refused = run(&["run"]);
    refused.assert_refused(1, &[&data, "Permission denied"]);
    assert!(refused.stderr.contains("hint: run as the owner"), "{refused:?}");
    run(&["jobs", "enqueue", "k", "1"]).assert_refused(1, &[&data, "Permission denied"]);
    // The socket of another user's server is not accessible.
    let server = sandbox.serve();
    run(&["jobs", "enqueue", "k", "1"]).assert_refused(1, &[&data, "Permission denied"]);
    assert!(server.terminate().success());
    assert_eq!(sandbox.count("k", "pending"), 1, "nothing was lost or added");
}

#[test]
fn a_database_of_a_newer_version_is_refused_and_unchanged() {
    let sandbox = Sandbox::new();
    sandbox.run(&["jobs", "enqueue", "k", "kept"]).answer();
    execute(
        &sandbox,
        "INSERT INTO migrations_work (version, name, applied_on, checksum)
        VALUES (99, 'from_the_future', '2030-01-01T00:00:00Z', '1')",
    );
    for arguments in [&["run"][..], &["jobs", "status"], &["jobs", "enqueue", "k", "1"]] {
        sandbox.run(arguments).assert_refused(1, &["version 99", "work tables", "at least as new"]);
    }
    execute(&sandbox, "DELETE FROM migrations_work WHERE version = 99");
    assert_eq!(sandbox.count("k", "pending"), 1, "nothing was lost or added");
}

fn execute(sandbox: &Sandbox, statement: &str) {
    let file = SqliteSettings::file(sandbox.data().join("work.db"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let sql = Sql::sqlite(&file, SystemClock::shared(), OsEntropy::shared()).await;
        sql.expect("a database").execute(statement, params![]).await.expect("executed");
    });
}

#[test]
fn a_file_that_is_not_a_database_is_named() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.data()).expect("the folder is made");
    std::fs::write(sandbox.data().join("work.db"), "this is not a database at all, nor was it")
        .expect("written");
    let file = sandbox.data().join("work.db").display().to_string();
    for arguments in [&["run"][..], &["jobs", "enqueue", "k", "1"]] {
        sandbox.run(arguments).assert_refused(1, &[&file, "not a database"]);
    }
}
