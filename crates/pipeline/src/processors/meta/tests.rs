//! Transactions and contracts built by hand.

use alloy_primitives::{B256, Bytes, hex, keccak256};
use logmill_chain::Log;

use super::contracts::{BEACON_UPGRADED, DIAMOND_CUT, UPGRADED};
use super::*;
use crate::derive::Cell;
use crate::derive::decoded::{
    DecodedTransaction, FtTransfer, NftStandard, NftTransfer, TransferKind,
};
use crate::derive::decoded_block_builder::{
    DecodedBlockBuilder, check_keys, log, rows_of, table, who,
};

fn sent(from: u8, to: u8, gas: u64) -> DecodedTransaction {
    DecodedTransaction {
        from: Some(who(from)),
        to: Some(who(to)),
        gas_used: Some(gas),
        success: Some(true),
        ..Default::default()
    }
}

fn creation(from: u8, created: u8, init_code: &[u8]) -> DecodedTransaction {
    DecodedTransaction {
        from: Some(who(from)),
        created: Some(who(created)),
        input: Bytes::copy_from_slice(init_code),
        success: Some(true),
        ..Default::default()
    }
}

fn ft(from: Address, to: Address, transaction_index: usize) -> FtTransfer {
    let (token, amount, kind) = (who(0xf0), U256::ONE, TransferKind::Transfer);
    FtTransfer { token, from, to, amount, kind, transaction_index, log_index: 0 }
}

fn nft(from: Address, to: Address, transaction_index: usize) -> NftTransfer {
    NftTransfer {
        collection: who(0xf1),
        token_id: U256::ONE,
        from,
        to,
        quantity: U256::ONE,
        standard: NftStandard::Erc721,
        kind: TransferKind::Transfer,
        transaction_index,
        log_index: 0,
        batch_index: 0,
    }
}

fn builder() -> DecodedBlockBuilder {
    let delegating = DecodedTransaction { authorities: vec![who(4), who(1)], ..sent(1, 1, 7) };
    let mut builder = DecodedBlockBuilder::new(9)
        .with(sent(1, 2, 100), vec![])
        .with(delegating, vec![])
        .with(creation(2, 3, &[1]), vec![]);
    builder.tokens.ft = vec![ft(who(2), who(5), 0), ft(who(5), who(2), 0), ft(who(1), who(5), 9)];
    builder.tokens.nft = vec![nft(Address::ZERO, who(5), 0), nft(who(6), Address::ZERO, 2)];
    builder
}

#[test]
fn an_address_has_one_row_per_transaction_with_all_its_roles() {
    let rows = rows_of(&Meta::default(), &[builder().block()]);
    check_keys(&rows);
    let row = |byte, index: u64, roles: u8| cells![who(byte), 9u64, index, roles];
    let expected = vec![
        row(1, 0, PAYER),
        row(1, 1, PAYER | RECEIVER | AUTHORIZER),
        row(2, 0, RECEIVER | FT_SENDER | FT_RECEIVER),
        row(2, 2, PAYER),
        row(3, 2, CREATED),
        row(4, 1, AUTHORIZER),
        row(5, 0, FT_SENDER | FT_RECEIVER | NFT_RECEIVER),
        row(6, 2, NFT_SENDER),
    ];
    assert_eq!(table(&rows, &ADDRESS_TRANSACTIONS), expected);
}

#[test]
fn roles_have_names() {
    assert_eq!(role_names(0), [""; 0]);
    assert_eq!(role_names(i64::from(PAYER | AUTHORIZER)), ["PAYER", "AUTHORIZER"]);
    let all = role_names(255);
    assert_eq!(all.len(), 8);
    assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 8);
}

#[test]
fn counts_are_those_of_the_rows_and_gas_is_the_senders() {
    let later = DecodedBlockBuilder::new(10).with(sent(1, 2, u64::MAX), vec![]);
    let rows = rows_of(&Meta::default(), &[later.block(), builder().block()]);
    let gas = |gas: u64| U256::from(gas);
    let both = U256::from(107) + U256::from(u64::MAX);
    let expected = vec![
        cells![who(1), 3u64, 3u64, both, 10u64],
        cells![who(2), 3u64, 1u64, gas(0), 10u64],
        cells![who(3), 1u64, 0u64, gas(0), 9u64],
        cells![who(4), 1u64, 0u64, gas(0), 9u64],
        cells![who(5), 1u64, 0u64, gas(0), 9u64],
        cells![who(6), 1u64, 0u64, gas(0), 9u64],
    ];
    assert_eq!(table(&rows, &ACCOUNT_STATS), expected);
}

#[test]
fn the_topics_are_the_hashes_of_the_signatures() {
    assert_eq!(keccak256("Upgraded(address)"), UPGRADED);
    assert_eq!(keccak256("BeaconUpgraded(address)"), BEACON_UPGRADED);
    assert_eq!(keccak256("DiamondCut((address,uint8,bytes4[])[],address,bytes)"), DIAMOND_CUT);
}

#[test]
fn a_deployment_is_the_first_version_and_has_a_kind() {
    let mut clone = hex!("3d602d80600a3d3981f3363d3d373d3d3d363d73").to_vec();
    clone.extend_from_slice(who(9).as_slice());
    clone.extend_from_slice(&hex!("5af43d82803e903d91602b57fd5bf3"));
    let upgraded = log(who(3), &[UPGRADED, who(8).into_word()], &[]);
    let elsewhere = log(who(7), &[UPGRADED, who(8).into_word()], &[]);
    let unknown = DecodedTransaction { success: None, ..creation(1, 6, &[1, 2]) };
    let block = DecodedBlockBuilder::new(4)
        .with(creation(1, 2, &clone), vec![])
        .with(creation(1, 3, &[1]), vec![upgraded])
        .with(creation(1, 4, &[1]), vec![elsewhere])
        .with(creation(1, 4, &[2]), vec![])
        .with(unknown, vec![])
        .block();
    let rows = rows_of(&Meta::default(), &[block]);
    check_keys(&rows);
    let hash = |code: &[u8]| keccak256(code);
    let row = |byte, index: u64, code: &[u8], kind, status: Option<bool>| {
        cells![who(byte), who(1), index, hash(code), kind, status, 4u64]
    };
    let expected = vec![
        row(2, 0, &clone, "MINIMAL_PROXY", Some(true)),
        row(3, 1, &[1], "PROXY", Some(true)),
        row(4, 2, &[1], "CONTRACT", Some(true)),
        row(6, 4, &[1, 2], "CONTRACT", None),
    ];
    assert_eq!(table(&rows, &SMART_CONTRACTS), expected);
    let versions = table(&rows, &CONTRACT_VERSIONS);
    let first =
        cells![who(2), 4u64, -1i64, 0u64, "DEPLOYED", who(9), hash(&clone), clone.len(), 4_000u64];
    assert!(versions.contains(&first), "{versions:?}");
    let second =
        cells![who(3), 4u64, 0u64, 1u64, "UPGRADED", who(8), Cell::Null, Cell::Null, 4_000u64];
    assert!(versions.contains(&second), "{versions:?}");
    assert_eq!(versions.len(), 6);
}

#[test]
fn a_change_of_code_counts_only_in_the_shape_of_its_event() {
    let address = who(8).into_word();
    let check = |written: &Log, expected: Option<(&str, Cell)>| {
        let block = DecodedBlockBuilder::new(4).with(sent(1, 2, 0), vec![written.clone()]).block();
        let rows = rows_of(&Meta::default(), &[block]);
        let found = table(&rows, &CONTRACT_VERSIONS);
        let found = found.first().map(|cells| cells[4..6].to_vec());
        assert_eq!(found, expected.map(|(kind, cell)| vec![kind.into(), cell]), "{written:?}");
    };
    let (none, cut) = (Vec::new(), vec![0; 96]);
    let write = |topics: &[B256], data: &[u8]| log(who(3), topics, data);
    let implementation = || Cell::from(who(8));
    check(&write(&[UPGRADED, address], &none), Some(("UPGRADED", implementation())));
    check(&write(&[UPGRADED], address.as_slice()), Some(("UPGRADED", implementation())));
    let beacon = ("BEACON_UPGRADED", implementation());
    check(&write(&[BEACON_UPGRADED, address], &none), Some(beacon));
    check(&write(&[DIAMOND_CUT], &cut), Some(("DIAMOND_CUT", Cell::Null)));
    check(&write(&[UPGRADED, address], &cut), None);
    check(&write(&[UPGRADED, B256::repeat_byte(1)], &none), None);
    check(&write(&[UPGRADED], &none), None);
    check(&write(&[BEACON_UPGRADED], address.as_slice()), None);
    check(&write(&[DIAMOND_CUT], &none), None);
    check(&write(&[], &cut), None);
}
