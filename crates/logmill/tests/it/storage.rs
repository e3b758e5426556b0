//! Disks and folders that do not do what they should: a clear error, a code that is not 0, nothing lost.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use logmill_io::sql::{Execute, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock, params};
use tempfile::TempDir;

use crate::process::{Ended, LOGMILL, Place, Server, command, finish};

/// A small file system that is gone with its handle.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// None if mounting is not allowed here.
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

    /// Writes until nothing fits any more.
    fn fill(&self) -> PathBuf {
        let file = self.path().join("filler");
        // It fails when the disk is full, which is the point.
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

fn enqueue(disk: &SmallDisk, key: &str) -> Ended {
    let payload = format!("\"{}\"", "x".repeat(60_000));
    finish(&mut on(disk, &["jobs", "enqueue", "k", key, "--payload", &payload]))
}

#[test]
fn a_full_disk_is_named_and_what_was_acknowledged_stays() {
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
    refused.refused(1, &["full"]);
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

/// The program as a user who owns nothing, where that user can run it.
fn as_nobody(programs: &TempDir, folder: &Path, arguments: &[&str], data: &Path) -> Ended {
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
    let place = Place::new();
    std::fs::set_permissions(place.root(), std::fs::Permissions::from_mode(0o755)).expect("set");
    let run = |arguments: &[&str]| as_nobody(&programs, Path::new("/"), arguments, &place.data());
    let data = place.data().display().to_string();
    // There is no folder, and none can be made.
    run(&["run"]).refused(1, &[&data, "Permission denied"]);
    run(&["jobs", "enqueue", "k", "1"]).refused(1, &[&data, "Permission denied"]);
    // There is one, of somebody else.
    place.run(&["jobs", "enqueue", "k", "kept"]).answer();
    let refused = run(&["run"]);
    refused.refused(1, &[&data, "Permission denied"]);
    assert!(refused.stderr.contains("hint: run as the owner"), "{refused:?}");
    run(&["jobs", "enqueue", "k", "1"]).refused(1, &[&data, "Permission denied"]);
    // While somebody else's server runs, its socket is not ours.
    let server = place.serve();
    run(&["jobs", "enqueue", "k", "1"]).refused(1, &[&data, "Permission denied"]);
    assert!(server.terminate().success());
    assert_eq!(place.count("k", "pending"), 1, "nothing was lost or added");
}

#[test]
fn a_database_of_a_newer_version_is_refused_and_left_alone() {
    let place = Place::new();
    place.run(&["jobs", "enqueue", "k", "kept"]).answer();
    execute(
        &place,
        "INSERT INTO migrations_work (version, name, applied_on, checksum)
        VALUES (99, 'from_the_future', '2030-01-01T00:00:00Z', '1')",
    );
    for arguments in [&["run"][..], &["jobs", "status"], &["jobs", "enqueue", "k", "1"]] {
        place.run(arguments).refused(1, &["version 99", "work tables", "at least as new"]);
    }
    execute(&place, "DELETE FROM migrations_work WHERE version = 99");
    assert_eq!(place.count("k", "pending"), 1, "nothing was lost or added");
}

fn execute(place: &Place, statement: &str) {
    let file = SqliteSettings::file(place.data().join("work.db"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let sql = Sql::sqlite(&file, SystemClock::shared(), OsEntropy::shared()).await;
        sql.expect("a database").execute(statement, params![]).await.expect("executed");
    });
}

#[test]
fn a_file_that_is_no_database_is_named() {
    let place = Place::new();
    std::fs::create_dir_all(place.data()).expect("the folder is made");
    std::fs::write(place.data().join("work.db"), "this is not a database at all, nor was it")
        .expect("written");
    let file = place.data().join("work.db").display().to_string();
    for arguments in [&["run"][..], &["jobs", "enqueue", "k", "1"]] {
        place.run(arguments).refused(1, &[&file, "not a database"]);
    }
}
