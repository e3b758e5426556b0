//! What opening concludes from a sidecar, and what a crash leaves of one.

use super::*;

const IDENTITY: [u8; 16] = [7; 16];

fn mark(sequence: u64) -> Mark {
    Mark { identity: IDENTITY, sequence }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn database(folder: &Path, commits: u64) -> PathBuf {
    let path = folder.join("test.db");
    let mut connection = Connection::open(&path).expect("a database");
    identify(&mut connection).expect("an identity");
    let text = "UPDATE store_identity SET identity = ?1, sequence = ?2";
    connection.execute(text, (IDENTITY, commits.cast_signed())).expect("an identity");
    path
}

fn write_slots(database: &Path, slots: &[(u64, &[u8])]) {
    let file = File::create(path_of(database)).expect("a sidecar");
    for (at, bytes) in slots {
        file.write_all_at(bytes, *at).expect("written");
    }
}

#[test]
fn the_newest_intact_slot_counts() {
    let folder = folder();
    let path = folder.path().join("test.db");
    let whole = |sequence| mark(sequence).bytes();
    let mut torn = whole(9);
    torn[20] ^= 1;
    let empty: &[u8] = &[];
    for (even, odd, expected) in [
        (&whole(8)[..], &whole(7)[..], Evidence::Found(mark(8))),
        (&whole(8), &whole(9), Evidence::Found(mark(9))),
        (&whole(8), &torn, Evidence::Found(mark(8))),
        (&whole(8), &whole(9)[..30], Evidence::Found(mark(8))),
        (&torn, empty, Evidence::Unreadable),
        (&[0; SLOT_BYTES], &[0; SLOT_BYTES], Evidence::Unreadable),
        (empty, empty, Evidence::Unreadable),
    ] {
        write_slots(&path, &[(SLOTS[0], even), (SLOTS[1], odd)]);
        assert_eq!(Evidence::read(&path).expect("it is read"), expected);
    }
    std::fs::remove_file(path_of(&path)).expect("removed");
    assert_eq!(Evidence::read(&path).expect("it is read"), Evidence::Missing);
}

#[test]
fn only_a_database_that_holds_less_than_its_sidecar_records_is_refused() {
    let folder = folder();
    let path = database(folder.path(), 5);
    let check_with = |slots: &[(u64, &[u8])]| {
        write_slots(&path, slots);
        check(&path).map_err(|error| error.to_string())
    };
    let other = Mark { identity: [8; 16], sequence: 1 }.bytes();
    for sequence in 0..=5 {
        check_with(&[(0, &mark(sequence).bytes())]).expect("it holds at least as much");
    }
    check_with(&[(0, b"torn")]).expect("nothing says that anything is missing");
    let error = check_with(&[(0, &mark(8).bytes())]).expect_err("it stepped back");
    for part in [
        "test.db has stepped back",
        "ends at commit 5",
        "test.db-state remembers 8",
        "last 3 are gone",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = check_with(&[(0, &other)]).expect_err("not the same");
    assert!(error.contains("it is another database, with 5 commits"), "{error}");
}

#[test]
fn a_missing_or_empty_database_is_refused_even_with_a_torn_sidecar() {
    let folder = folder();
    let path = folder.path().join("test.db");
    check(&path).expect("nothing was ever there");
    for slot in [&mark(5).bytes()[..], b"torn"] {
        write_slots(&path, &[(0, slot)]);
        for make in [None, Some(&b""[..])] {
            if let Some(bytes) = make {
                std::fs::write(&path, bytes).expect("an empty file");
            }
            let error = check(&path).expect_err("it is gone").to_string();
            assert!(error.contains("it is missing or empty"), "{error}");
        }
        let connection = Connection::open(&path).expect("a database");
        connection.execute_batch("CREATE TABLE other (id)").expect("a table");
        let error = check(&path).expect_err("it is not the one").to_string();
        assert!(error.contains("nothing that was written is in it"), "{error}");
        drop(connection);
        std::fs::remove_file(&path).expect("removed");
    }
}

#[test]
fn every_write_leaves_one_slot_unchanged() {
    let folder = folder();
    let path = database(folder.path(), 1);
    let mut connection = Connection::open(&path).expect("a database");
    let mut sidecar = Sidecar::open(&mut connection, &path, Durability::Full).expect("a sidecar");
    for _ in 0..10 {
        let before = std::fs::read(path_of(&path)).expect("a sidecar");
        let sequence = Sidecar::count(&connection).expect("counted");
        sidecar.committed(sequence);
        let after = std::fs::read(path_of(&path)).expect("a sidecar");
        let slot = |bytes: &[u8], at: u64| {
            let at = usize::try_from(at).expect("small");
            bytes[at..at + SLOT_BYTES].to_vec()
        };
        let changed = SLOTS.into_iter().filter(|at| slot(&before, *at) != slot(&after, *at));
        assert_eq!(changed.count(), 1, "at {sequence}");
        assert_eq!(Evidence::read(&path).expect("read"), Evidence::Found(mark(sequence)));
    }
}
