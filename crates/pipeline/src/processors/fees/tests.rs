//! Fee logs, and logs that only resemble them.

use alloy_primitives::{Bytes, hex, keccak256};
use logmill_chain::Topics;

use super::*;
use crate::derive::Cell;
use crate::derive::block_builder::{BlockBuilder, account, log, rows, table, word};

const FORWARDER: Address = FORWARDERS[0].1;
/// Polygon.
const CHAIN: u64 = 137;

/// The rows of both tables from one log on Polygon.
fn found(log: Log) -> (Vec<Vec<Cell>>, Vec<Vec<Cell>>) {
    let block = BlockBuilder::new(7).transaction([log]).decoded();
    let rows = rows(&Fees::of_chain(CHAIN), [&block]);
    (table(&rows, &FEE_EVENTS), table(&rows, &FEE_FORWARDS))
}

fn is_nothing(log: Log) -> bool {
    found(log) == (Vec::new(), Vec::new())
}

#[test]
fn the_events_have_the_hashes_of_their_signatures() {
    let collected = "FeesCollected(address,address,uint256,uint256)";
    assert_eq!(keccak256(collected), FEES_COLLECTED);
    let forwarded = "FeesForwarded(address,(address,uint256)[])";
    assert_eq!(keccak256(forwarded), FEES_FORWARDED);
}

#[test]
fn a_real_log_is_read_exactly() {
    let integrator = address!("0x1ac3ef0ecf4e0ed23d62cab448f3169064230624");
    let hash = b256!("0x851b602d5c75f5253d3bb0884ee2df434ee67312d97fbcab29da66b4e370fdbd");
    let data = hex!(
        "000000000000000000000000000000000000000000000000003c6568f12e8000"
        "000000000000000000000000000000000000000000000000000aa87bee538000"
    );
    let topics = [FEES_COLLECTED, B256::ZERO, integrator.into_word()];
    let log = Log {
        address: address!("0xbd6c7b0d2f68c2b7805d88388319cfb6ecb50ea9"),
        topics: topics.into_iter().collect(),
        data: Bytes::copy_from_slice(&data),
    };
    let position = LogPosition {
        block: 52_661_448,
        timestamp: 1_705_940_000,
        transaction_index: 82,
        transaction_hash: hash,
        log_index: 377,
    };
    let mut rows = Rows::new(Fees::default().tables());
    rows.at_block(position.block);
    Fees::of_chain(CHAIN).process_log(&position, &log, &mut rows).unwrap();
    let mut expected = cells![52_661_448_u64, 377_u64, 82_u64, hash, 1_705_940_000_u64];
    expected.extend(cells![log.address, Address::ZERO, integrator]);
    expected.extend(cells![U256::from(17_000_000_000_000_000_u64)]);
    expected.extend(cells![U256::from(3_000_000_000_000_000_u64)]);
    assert_eq!(table(&rows, &FEE_EVENTS), [expected]);
}

#[test]
fn a_collected_fee_counts_only_from_the_collector_and_in_its_shape() {
    let (token, integrator) = (account(1).into_word(), account(2).into_word());
    let topics = [FEES_COLLECTED, token, integrator];
    let fee = [word(5), word(6)];
    assert_eq!(found(log(COLLECTOR, &topics, &fee)).0.len(), 1);
    // The same event from a trading pair.
    assert!(is_nothing(log(account(3), &topics, &fee)));
    assert!(is_nothing(log(FORWARDER, &topics, &fee)));
    // Other events of the collector.
    for signature in
        ["FeesWithdrawn(address,address,uint256)", "LiFiFeesWithdrawn(address,address,uint256)"]
    {
        let topics = [keccak256(signature), token, integrator];
        assert!(is_nothing(log(COLLECTOR, &topics, &[word(5)])), "{signature}");
        assert!(is_nothing(log(COLLECTOR, &topics, &fee)), "{signature}");
    }
    assert!(is_nothing(log(COLLECTOR, &topics[..2], &fee)));
    assert!(is_nothing(log(COLLECTOR, &[topics[0], token, integrator, token], &fee)));
    assert!(is_nothing(log(COLLECTOR, &[topics[0], B256::repeat_byte(1), integrator], &fee)));
    assert!(is_nothing(log(COLLECTOR, &[topics[0], token, B256::repeat_byte(1)], &fee)));
    assert!(is_nothing(log(COLLECTOR, &topics, &[])));
    assert!(is_nothing(log(COLLECTOR, &topics, &fee[..1])));
    assert!(is_nothing(log(COLLECTOR, &topics, &[word(5), word(6), word(7)])));
    let topics: Topics = topics.into_iter().collect();
    for length in [63, 65] {
        let data = Bytes::from(vec![0; length]);
        assert!(is_nothing(Log { address: COLLECTOR, topics: topics.clone(), data }), "{length}");
    }
}

#[test]
fn a_forwarded_fee_has_a_row_for_each_recipient() {
    let token = account(1).into_word();
    let check = |recipients: &[(u8, u64)]| {
        let mut data = vec![word(32), word(u64::try_from(recipients.len()).unwrap())];
        for (recipient, amount) in recipients {
            data.extend([account(*recipient).into_word(), word(*amount)]);
        }
        let (collected, forwarded) = found(log(FORWARDER, &[FEES_FORWARDED, token], &data));
        assert!(collected.is_empty());
        let brief = |row: &Vec<Cell>| [row[2].clone(), row[8].clone(), row[9].clone()];
        let forwarded: Vec<_> = forwarded.iter().map(brief).collect();
        let expected: Vec<_> = recipients
            .iter()
            .enumerate()
            .map(|(index, (recipient, amount))| {
                [index.into(), account(*recipient).into(), U256::from(*amount).into()]
            })
            .collect();
        assert_eq!(forwarded, expected);
    };
    check(&[]);
    check(&[(2, 50)]);
    check(&[(2, 50), (3, 0), (2, 7)]);
}

#[test]
fn an_invalid_forwarded_fee_is_skipped() {
    let token = account(1).into_word();
    let check = |contract, topics: &[B256], data: &[B256]| {
        assert!(is_nothing(log(contract, topics, data)), "{topics:?} {data:?}");
    };
    let topics = [FEES_FORWARDED, token];
    let (who, one) = (account(2).into_word(), word(1));
    let good = [word(32), one, who, one];
    check(account(3), &topics, &good);
    check(COLLECTOR, &topics, &good);
    check(FORWARDER, &topics[..1], &good);
    check(FORWARDER, &[FEES_FORWARDED, token, token], &good);
    check(FORWARDER, &[FEES_FORWARDED, B256::repeat_byte(1)], &good);
    let max = B256::repeat_byte(0xff);
    for bad in [
        &[][..],
        &[word(32)],
        &[word(32), one],
        &[word(32), one, who],
        &[word(32), word(2), who, one],
        &[word(32), max, who, one],
        &[word(32), word(u64::MAX), who, one],
        &[word(32), word(1 << 58), who, one],
        &[max, one, who, one],
        &[word(u64::MAX), one, who, one],
        &[word(128), one, who, one],
        &[word(96), one, who, one],
        // An address word with more bits than an address, there or in a later element.
        &[word(32), one, max, one],
        &[word(32), word(2), who, one, max, one],
    ] {
        check(FORWARDER, &topics, bad);
    }
    // An array may begin at another offset, and data may follow it.
    let later = [word(64), max, one, who, one, max];
    assert_eq!(found(log(FORWARDER, &topics, &later)).1.len(), 1);
}

#[test]
fn every_chain_has_its_contracts() {
    let of = |chain| (Fees::of_chain(chain).collectors, Fees::of_chain(chain).forwarders);
    assert_eq!(of(137), (vec![COLLECTOR], vec![FORWARDER]));
    assert_eq!(of(1), (vec![COLLECTOR], vec![]));
    assert_eq!(of(31_337), (vec![COLLECTOR], vec![]));
    let base = address!("0x0a6d96e7f4d7b96cfe42185df61e64d255c12dff");
    assert_eq!(of(8_453), (vec![base], vec![]));
    assert_ne!(Fees::of_chain(1).parameters(), Fees::of_chain(137).parameters());
    assert!([1, 137, 8_453].into_iter().all(Fees::is_known) && !Fees::is_known(31_337));
}
