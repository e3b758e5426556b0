//! Tests of events by signature: their tables, and decoding of valid and invalid logs.

use alloy_dyn_abi::DynSolType;
use alloy_primitives::{B256, Bytes, U256, address, b256};
use logmill_io::Amount;
use proptest::prelude::*;

use super::*;
use crate::derive::Cell;
use crate::derive::decoded::event::SIGNATURE_BYTES_MAX;
use crate::derive::table::Fold;

const CONTRACT: Address = address!("0xbd6c7b0d2f68c2b7805d88388319cfb6ecb50ea9");
const OTHER: Address = address!("0x0000000000000000000000000000000000000007");
const POSITION: LogPosition = LogPosition {
    block: 52_661_448,
    timestamp: 1_705_918_000,
    transaction_index: 82,
    transaction_hash: B256::repeat_byte(9),
    log_index: 377,
};

fn event(signature: &str) -> CollectedEvent {
    CollectedEvent::new(&[CONTRACT], signature).expect(signature)
}

fn log(topics: &[B256], data: Vec<u8>) -> Log {
    Log { address: CONTRACT, topics: topics.iter().copied().collect(), data: data.into() }
}

fn word(number: u64) -> B256 {
    U256::from(number).into()
}

/// The parameter cells of a log's row, if it has one.
fn cells_of(event: &CollectedEvent, log: &Log) -> Option<Vec<Cell>> {
    let mut rows = Rows::new(event.tables());
    rows.at_block(POSITION.block);
    event.process_log(&POSITION, log, &mut rows).expect("no log is an error");
    let (_, rows) = rows.tables().next().expect("a table");
    rows.first().map(|row| row.cells[6..].to_vec())
}

#[test]
fn a_signature_becomes_a_typed_table() {
    let event = event(
        "event Swap(address indexed from, int24 tick, uint256 indexed amountIn, bool ok, bytes32 _id, \
         bytes data, string note, string indexed hashed, uint8[] list, (uint256 a, address b) pair);",
    );
    let columns = event.table.columns[6..].iter();
    let columns: Vec<(&str, Kind)> = columns.map(|column| (column.name, column.kind)).collect();
    let expected = [
        ("from_", Kind::Address),
        ("tick", Kind::Amount),
        ("amount_in", Kind::Amount),
        ("ok", Kind::Int),
        ("id", Kind::Bytes),
        ("data", Kind::Bytes),
        ("note", Kind::Text),
        ("hashed", Kind::Bytes),
        ("list", Kind::Text),
        ("pair", Kind::Text),
    ];
    assert_eq!(columns, expected);
    assert_eq!(event.table.key_len(), 2);
    assert!(event.table.columns[2..].iter().all(|column| column.fold == Fold::Once));
    assert!(event.table.name.starts_with("collected_swap_"), "{}", event.table.name);
    assert_eq!(event.name().replacen("collect_", "collected_", 1), event.table.name);
}

#[test]
fn another_signature_or_contract_is_another_table() {
    let name = |contracts: &[Address], signature: &str| {
        CollectedEvent::new(contracts, signature).expect(signature).name().to_owned()
    };
    let transfer = "event Transfer(address indexed from, address indexed to, uint256 value)";
    let same = name(&[CONTRACT, OTHER], transfer);
    assert_eq!(same, name(&[OTHER, CONTRACT, OTHER], transfer));
    assert_ne!(same, name(&[CONTRACT], transfer));
    let nft = "event Transfer(address indexed from, address indexed to, uint256 indexed value)";
    assert_ne!(same, name(&[CONTRACT, OTHER], nft));
    let long = name(&[CONTRACT], "event AVeryVeryVeryVeryVeryLongNameOfAnEvent(uint256 a)");
    assert!(long.len() <= 32, "{long}");
}

#[test]
fn signatures_that_cannot_be_collected_are_refused_with_a_reason() {
    for (signature, reason) in [
        ("Transfer", "not an event"),
        ("event Transfer(address", "not an event"),
        ("function f(uint256 a)", "not an event"),
        ("event A(uint7 a)", "not an event"),
        ("event A(address a) anonymous", "anonymous"),
        ("event A(uint[][][] a)", "too deep"),
        ("event A(uint256[0] a)", "not an event"),
    ] {
        let error = CollectedEvent::new(&[CONTRACT], signature).expect_err(signature);
        assert!(error.to_string().contains(reason), "{signature}: {error}");
    }
    let long = format!("event A(uint256 {})", "a".repeat(SIGNATURE_BYTES_MAX));
    CollectedEvent::new(&[CONTRACT], &long).expect_err("too long");
    let many: Vec<String> = (0..33).map(|n| format!("uint256 a{n}")).collect();
    CollectedEvent::new(&[CONTRACT], &format!("event A({})", many.join(","))).expect_err("many");
    event_processor(1, &[], "").expect_err("no contract");
}

#[test]
fn fees_of_known_contracts_share_the_tables_of_the_deriver() {
    let name = |chain, contract| event_processor(chain, &[contract], " ").expect("fine");
    let known = name(137, CONTRACT);
    assert_eq!(known.name(), "fees_worker");
    assert_eq!(known.parameters(), Fees::of_chain(137).parameters());
    let own = name(137, OTHER);
    assert_ne!(own.parameters(), known.parameters());
    assert_eq!(own.filter().addresses, [OTHER]);
}

#[test]
fn the_collected_fees_of_the_real_chain_decode_exactly_by_signature_too() {
    let fees = event(
        "event FeesCollected(address indexed _token, address indexed _integrator, uint256 _integratorFee, \
         uint256 _lifiFee)",
    );
    let integrator = address!("0x1aC3EF0ECF4E0ed23D62cab448f3169064230624");
    let data = [word(0x003c_6568_f12e_8000), word(0x000a_a87b_ee53_8000)].concat();
    let topics = [FEES_COLLECTED, B256::ZERO, integrator.into_word()];
    let found = cells_of(&fees, &log(&topics, data)).expect("a row");
    let amount = |number: u64| Cell::Amount(Amount::from(number));
    let expected = vec![
        Cell::Address(Address::ZERO),
        Cell::Address(integrator),
        amount(17_000_000_000_000_000),
        amount(3_000_000_000_000_000),
    ];
    assert_eq!(found, expected);
}

#[test]
fn every_kind_of_value_is_stored() {
    let event =
        event("event A(int8 i, bool b, bytes3 f, bytes d, string s, (uint8 a, bytes2[] b)[] t)");
    let topic = event.filter().topics[0];
    let values = DynSolType::Tuple(event.decoder.parameters().map(|it| it.ty.clone()).collect());
    let text = "a\0é";
    let parts = alloy_dyn_abi::DynSolValue::Tuple(vec![
        alloy_dyn_abi::DynSolValue::Int((-5).try_into().expect("small"), 8),
        true.into(),
        alloy_dyn_abi::DynSolValue::FixedBytes(
            b256!("0x0102030000000000000000000000000000000000000000000000000000000000"),
            3,
        ),
        alloy_dyn_abi::DynSolValue::Bytes(vec![7, 8]),
        alloy_dyn_abi::DynSolValue::String(text.to_owned()),
        alloy_dyn_abi::DynSolValue::Array(vec![alloy_dyn_abi::DynSolValue::Tuple(vec![
            alloy_dyn_abi::DynSolValue::Uint(U256::from(255), 8),
            alloy_dyn_abi::DynSolValue::Array(vec![alloy_dyn_abi::DynSolValue::FixedBytes(
                b256!("0xabcd000000000000000000000000000000000000000000000000000000000000"),
                2,
            )]),
        ])]),
    ]);
    assert!(values.matches(&parts));
    let data = parts.abi_encode_sequence().expect("a sequence");
    let found = cells_of(&event, &log(&[topic], data)).expect("a row");
    let bytes = |bytes: &[u8]| Cell::Bytes(bytes.to_vec().into());
    let expected = vec![
        Cell::Amount(-Amount::from(5_u64)),
        Cell::Int(1),
        bytes(&[1, 2, 3]),
        bytes(&[7, 8]),
        Cell::Text("a\u{fffd}é".to_owned()),
        Cell::Text(r#"[["255",["0xabcd"]]]"#.to_owned()),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_log_that_is_not_what_its_topic_says_has_no_row() {
    let event = event("event A(address indexed a, uint8 indexed n, bool ok, uint16 m)");
    let topic = event.filter().topics[0];
    let (a, n) = (CONTRACT.into_word(), word(255));
    let data = |ok: u64, m: u64| [word(ok), word(m)].concat();
    let check = |topics: &[B256], data: Vec<u8>, has_row: bool| {
        assert_eq!(cells_of(&event, &log(topics, data)).is_some(), has_row, "{topics:?}");
    };
    check(&[topic, a, n], data(1, 65_535), true);
    check(&[topic, a], data(1, 2), false);
    check(&[topic, a, n, n], data(1, 2), false);
    check(&[topic, B256::repeat_byte(1), n], data(1, 2), false);
    check(&[topic, a, word(256)], data(1, 2), false);
    check(&[topic, a, n], data(2, 2), false);
    check(&[topic, a, n], data(1, 65_536), false);
    check(&[topic, a, n], data(1, 2)[..63].to_vec(), false);
    check(&[topic, a, n], [data(1, 2), vec![0; 32]].concat(), false);
    check(&[n, a, n], data(1, 2), false);
    let elsewhere = Log { address: OTHER, ..log(&[topic, a, n], data(1, 2)) };
    assert_eq!(cells_of(&event, &elsewhere), None);
}

#[test]
fn a_log_that_expands_too_much_has_no_row() {
    let event = event("event A(uint256[][] a)");
    let topic = event.filter().topics[0];
    // Many offsets that all point to one long list.
    let lists = |count: u64, length: u64| {
        let mut words = vec![word(32), word(count)];
        words.extend((0..count).map(|_| word(32 * count)));
        words.push(word(length));
        words.extend((0..length).map(word));
        words.concat()
    };
    assert!(cells_of(&event, &log(&[topic], lists(3, 3))).is_some());
    assert!(cells_of(&event, &log(&[topic], lists(600, 600))).is_none());
}

proptest! {
    #[test]
    fn any_bytes_yield_a_row_or_none_and_never_a_panic(
        topics in prop::collection::vec(any::<[u8; 32]>(), 0..4),
        data in prop::collection::vec(any::<u8>(), 0..400),
        small in prop::collection::vec(0_u64..200, 0..12),
    ) {
        let event = event("event A(bytes indexed b, string s, (uint8[] a, bytes d)[] t, int16[2] f)");
        let mut all = vec![event.filter().topics[0]];
        all.extend(topics.into_iter().map(B256::from));
        all.truncate(4);
        let words: Vec<u8> = small.into_iter().flat_map(|number| word(number).0).collect();
        for data in [Bytes::from(data), Bytes::from(words)] {
            let _ = cells_of(&event, &log(&all[..2.min(all.len())], data.to_vec()));
        }
    }
}
