//! Deposits and withdrawals built by hand.

use alloy_primitives::keccak256;

use super::*;
use crate::derive::decoded::{DecodedTransaction, Withdrawal};
use crate::derive::decoded_block_builder::{
    DecodedBlockBuilder, check_keys, log, rows_of, table, who,
};

/// The data of a deposit, as Solidity encodes it.
fn data(key: u8, credentials: u8, gwei: u64, sequence: u64) -> Vec<u8> {
    let parts: [Vec<u8>; 5] = [
        vec![key; 48],
        vec![credentials; 32],
        gwei.to_le_bytes().to_vec(),
        vec![9; 96],
        sequence.to_le_bytes().to_vec(),
    ];
    let word = |number: usize| U256::from(number).to_be_bytes::<32>();
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    for part in parts {
        head.extend_from_slice(&word(5 * 32 + tail.len()));
        tail.extend_from_slice(&word(part.len()));
        tail.extend_from_slice(&part);
        tail.resize(tail.len().next_multiple_of(32), 0);
    }
    [head, tail].concat()
}

pub(crate) fn a_deposit() -> Log {
    deposited(contract(), &data(1, 2, 3, 4))
}

fn deposited(contract: Address, data: &[u8]) -> Log {
    log(contract, &[DEPOSIT_EVENT], data)
}

fn contract() -> Address {
    deposit_contract(1).expect("mainnet has one")
}

#[test]
fn the_topic_is_the_hash_of_the_signature() {
    assert_eq!(keccak256("DepositEvent(bytes,bytes,bytes,bytes,bytes)"), DEPOSIT_EVENT);
}

#[test]
fn only_the_deposit_contract_in_the_layout_of_its_event_counts() {
    let good = data(1, 2, 32_000_000_000, 7);
    let expected = Deposit {
        node_id: Bytes::from(vec![1; 48]),
        withdrawal_credentials: Bytes::from(vec![2; 32]),
        amount_gwei: 32_000_000_000,
        sequence: 7,
    };
    assert_eq!(deposit(1, &deposited(contract(), &good)), Some(expected.clone()));
    assert_eq!(deposit(560_048, &deposited(contract(), &good)), Some(expected));
    let check = |chain_id, log: &Log| assert_eq!(deposit(chain_id, log), None);
    check(5, &deposited(contract(), &good));
    check(17_000, &deposited(contract(), &good));
    check(1, &deposited(who(1), &good));
    check(1, &log(contract(), &[], &good));
    check(1, &log(contract(), &[DEPOSIT_EVENT, B256::ZERO], &good));
    check(1, &deposited(contract(), &good[..575]));
    check(1, &deposited(contract(), &[]));
    // Every word of the layout matters.
    for at in [31, 63, 95, 127, 159, 191, 287, 351, 415, 543] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        check(1, &deposited(contract(), &bad));
    }
}

#[test]
fn deposits_add_up_by_key_and_withdrawals_by_validator() {
    let sent = |from: u8| DecodedTransaction { from: Some(who(from)), ..Default::default() };
    let gwei = 1_000_000_000_u64;
    let one = DecodedBlockBuilder::new(5)
        .with(
            sent(1),
            vec![deposited(contract(), &data(1, 2, 32 * gwei, 0)), log(who(8), &[], &[])],
        )
        .with(sent(2), vec![deposited(contract(), &data(1, 3, gwei, 1))]);
    let withdrawal = |validator_index, to: u8, amount_gwei| Withdrawal {
        index: 70,
        validator_index,
        address: who(to),
        amount_gwei,
    };
    let mut two = DecodedBlockBuilder::new(6);
    two.withdrawals = vec![withdrawal(4, 1, 3), withdrawal(4, 2, 4), withdrawal(5, 1, u64::MAX)];
    let blocks = [one.block(), two.block()];
    let rows = rows_of(&Staking, &blocks);
    check_keys(&rows);
    let wei = |gwei: u64| wei(gwei);

    let nodes = table(&rows, &STAKING_NODES);
    let (key, credentials) = (Bytes::from(vec![1; 48]), Bytes::from(vec![2; 32]));
    assert_eq!(nodes, [cells![key.clone(), credentials, wei(33 * gwei), 5u64, 2u64]]);
    let validators = table(&rows, &STAKING_VALIDATORS);
    let expected =
        [cells![4u64, wei(7), who(2), 6u64, 2u64], cells![5u64, wei(u64::MAX), who(1), 6u64, 1u64]];
    assert_eq!(validators, expected);

    let events = table(&rows, &STAKING_EVENTS);
    assert_eq!(events.len(), 5);
    let second = cells![
        5u64,
        0u64,
        2u64,
        1u64,
        "DEPOSIT",
        key,
        Cell::Null,
        who(2),
        wei(gwei),
        Bytes::from(vec![3; 32]),
        1u64,
        5_000u64
    ];
    assert_eq!(events[1], second);
    let first_out = cells![
        6u64,
        1u64,
        0u64,
        Cell::Null,
        "WITHDRAWAL",
        Cell::Null,
        4u64,
        who(1),
        wei(3),
        Cell::Null,
        70u64,
        6_000u64
    ];
    assert_eq!(events[2], first_out);
}
