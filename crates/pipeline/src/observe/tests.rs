//! Observations are stored once, and found again.

use logmill_io::sql::SqliteSettings;
use logmill_io::{SeededEntropy, SimClock};

use super::*;

async fn database() -> Sql {
    let clock = SimClock::at(Timestamp(1_000));
    Sql::sqlite(&SqliteSettings::memory(), clock, SeededEntropy::shared(1)).await.expect("opens")
}

async fn opened() -> Observations {
    Observations::open(database().await, 1).await.expect("opens")
}

fn question(subject: &[u8]) -> Question {
    Question::new("token_name", &[subject])
}

fn answer(block: u64, status: AnswerStatus, value: &'static [u8]) -> StateAnswer {
    StateAnswer { block, status, value: Bytes::from_static(value) }
}

#[tokio::test]
async fn the_first_answer_is_kept() {
    let kept = opened().await;
    let put = async |answer: &StateAnswer| {
        kept.put_in(&kept.sql, &question(b"a"), answer).await.expect("a database")
    };
    assert_eq!(put(&answer(5, AnswerStatus::Ok, b"one")).await, PutOutcome::New);
    assert_eq!(put(&answer(5, AnswerStatus::Ok, b"one")).await, PutOutcome::Same);
    assert_eq!(put(&answer(5, AnswerStatus::Ok, b"two")).await, PutOutcome::Another);
    assert_eq!(put(&answer(5, AnswerStatus::Reverted, b"one")).await, PutOutcome::Another);
    assert_eq!(put(&answer(6, AnswerStatus::Reverted, b"no")).await, PutOutcome::New);
    let found = kept.latest(&question(b"a"), 5).await.expect("reads").expect("there");
    assert_eq!((found.status, &found.value[..]), (AnswerStatus::Ok, &b"one"[..]));
    let large = StateAnswer {
        value: vec![0; VALUE_BYTES_MAX + 1].into(),
        ..answer(7, AnswerStatus::Ok, b"")
    };
    assert!(kept.put_in(&kept.sql, &question(b"a"), &large).await.is_err());
}

#[tokio::test]
async fn the_newest_answer_at_or_before_a_block_is_found() {
    let kept = opened().await;
    for block in [5, 9, 20] {
        let answer = answer(block, AnswerStatus::Ok, b"x");
        kept.put_in(&kept.sql, &question(b"a"), &answer).await.expect("a database");
    }
    let found = async |block| {
        kept.latest(&question(b"a"), block).await.expect("reads").map(|found| found.block)
    };
    for (block, expected) in [(4, None), (5, Some(5)), (8, Some(5)), (9, Some(9)), (19, Some(9))] {
        assert_eq!(found(block).await, expected, "at {block}");
    }
    assert_eq!(found(u64::MAX).await, Some(20));
    assert!(kept.latest(&question(b"b"), 30).await.expect("reads").is_none());
    let other_kind = Question { kind: "token_symbol", ..question(b"a") };
    assert!(kept.latest(&other_kind, 30).await.expect("reads").is_none());
    let other_chain = Observations::open(kept.sql.clone(), 2).await.expect("opens");
    assert!(other_chain.latest(&question(b"a"), 30).await.expect("reads").is_none());
}

#[tokio::test]
async fn a_list_has_every_answer_once_for_every_page_size() {
    let kept = opened().await;
    let mut expected = Vec::new();
    for subject in [&b""[..], b"a", b"ab", b"b", &[0xff; 52]] {
        for block in [0, 3, 300] {
            let answer = answer(block, AnswerStatus::Empty, b"");
            kept.put_in(&kept.sql, &question(subject), &answer).await.expect("a database");
            expected.push((Bytes::copy_from_slice(subject), block));
        }
    }
    for page in 1..expected.len() + 1 {
        let mut found: Vec<(Bytes, u64)> = Vec::new();
        loop {
            let after = found.last().map(|(subject, block)| (&subject[..], *block));
            let listed = kept.list("token_name", after, page).await.expect("reads");
            let done = listed.len() < page;
            found.extend(listed.into_iter().map(|found| (found.subject, found.block)));
            if done {
                break;
            }
        }
        assert_eq!(found, expected, "in pages of {page}");
    }
}

#[test]
fn numbers_and_names_of_statuses_are_unique() {
    for status in AnswerStatus::ALL {
        assert_eq!(AnswerStatus::of_number(status.number()).expect("known"), status);
        assert_eq!(
            AnswerStatus::ALL.iter().filter(|other| other.name() == status.name()).count(),
            1
        );
    }
    assert!(AnswerStatus::of_number(4).is_err());
}
