//! Touched contracts and the rule of each tag, with transactions built by hand.

use alloy_primitives::{B256, Bytes, U256, keccak256};
use logmill_chain::Log;

use super::tags::{APPROVAL, APPROVAL_FOR_ALL, UNWRAPPED, WRAPPED};
use super::*;
use crate::derive::decoded::{FtTransfer, NftStandard, NftTransfer, TransferKind};
use crate::derive::decoded_block_builder::{
    DecodedBlockBuilder, check_keys, log, rows_of, table, who,
};
use crate::processors::fees::{FEES_COLLECTED, FEES_FORWARDED};
use crate::processors::staking;

fn call(to: u8, input: &[u8]) -> DecodedTransaction {
    DecodedTransaction {
        from: Some(who(1)),
        to: Some(who(to)),
        input: Bytes::copy_from_slice(input),
        success: Some(true),
        ..Default::default()
    }
}

#[test]
fn a_contract_has_one_row_with_its_most_specific_source() {
    let by = |byte| log(who(byte), &[], &[]);
    let created = DecodedTransaction { created: Some(who(4)), to: None, ..call(0, &[1]) };
    let block = DecodedBlockBuilder::new(6)
        .with(call(2, &[1]), vec![by(3), by(2), by(3)])
        .with(call(2, &[]), vec![])
        .with(call(2, &[]), vec![by(2)])
        .with(call(2, &[1]), vec![])
        .with(created, vec![by(4), by(5)])
        .block();
    let rows = rows_of(&TxContracts::default(), &[block]);
    check_keys(&rows);
    let row = |index: u64, byte, source| cells![6u64, index, who(byte), source];
    let expected = vec![
        row(0, 2, "call"),
        row(0, 3, "log"),
        row(2, 2, "call"),
        row(3, 2, "call"),
        row(4, 4, "create"),
        row(4, 5, "log"),
    ];
    assert_eq!(table(&rows, &TX_CONTRACTS), expected);
}

/// The tags of the only transaction of a block.
fn tags(builder: DecodedBlockBuilder) -> Vec<&'static str> {
    let block = builder.block();
    let rows = rows_of(&TxContracts::default(), std::slice::from_ref(&block));
    check_keys(&rows);
    let tags = tags::of(&block).remove(0);
    let stored: Vec<_> = tags.iter().map(|tag| cells![6u64, 0u64, *tag]).collect();
    assert_eq!(table(&rows, &TX_TAGS), stored);
    tags.into_iter().collect()
}

fn tags_of(transaction: DecodedTransaction, logs: Vec<Log>) -> Vec<&'static str> {
    tags(DecodedBlockBuilder::new(6).with(transaction, logs))
}

#[test]
fn a_transaction_is_tagged_by_what_it_is() {
    let check = |sent: DecodedTransaction, expected: &[&str]| {
        assert_eq!(tags_of(sent.clone(), vec![]), expected, "{sent:?}");
    };
    let plain = DecodedTransaction { value: U256::ONE, ..call(2, &[]) };
    check(plain.clone(), &["TRANSFER"]);
    check(DecodedTransaction { success: None, ..plain.clone() }, &["TRANSFER"]);
    check(DecodedTransaction { success: Some(false), ..plain.clone() }, &["FAILED"]);
    check(call(2, &[]), &[]);
    check(DecodedTransaction { input: Bytes::from_static(&[1]), ..plain.clone() }, &[]);
    assert_eq!(tags_of(plain, vec![log(who(2), &[], &[])]), [""; 0]);
    check(DecodedTransaction { created: Some(who(4)), ..Default::default() }, &["DEPLOY"]);
    check(DecodedTransaction { tx_type: 3, ..call(2, &[1]) }, &["BLOB"]);
    check(DecodedTransaction { blob_gas_used: Some(1), ..call(2, &[1]) }, &["BLOB"]);
    check(DecodedTransaction { blob_gas_used: Some(0), ..call(2, &[1]) }, &[]);
    let delegating = DecodedTransaction { tx_type: 4, success: Some(false), ..call(2, &[1]) };
    check(delegating, &["FAILED", "SET_CODE"]);
}

#[test]
fn a_transaction_is_tagged_by_its_logs() {
    let check = |topics: &[B256], expected: &[&str]| {
        // Two such logs, because each tag must occur once.
        let written = log(who(3), topics, &[0; 64]);
        let found = tags_of(call(2, &[1]), vec![written.clone(), written]);
        assert_eq!(found, expected, "{topics:?}");
    };
    let (me, nobody) = (who(9).into_word(), B256::ZERO);
    let hash = |signature: &str| keccak256(signature);
    assert_eq!(hash("Approval(address,address,uint256)"), APPROVAL);
    assert_eq!(hash("ApprovalForAll(address,address,bool)"), APPROVAL_FOR_ALL);
    check(&[APPROVAL, me, me], &["APPROVAL"]);
    check(&[APPROVAL, me, me, nobody], &["APPROVAL"]);
    check(&[APPROVAL, me, nobody, nobody], &[]);
    check(&[APPROVAL, me], &[]);
    check(&[APPROVAL_FOR_ALL, me, me], &["APPROVAL"]);
    check(&[APPROVAL_FOR_ALL, me, B256::repeat_byte(1)], &[]);
    check(&[FEES_COLLECTED, me, me], &["FEE"]);
    check(&[FEES_COLLECTED, me], &[]);
    check(&[FEES_FORWARDED, me], &["FEE"]);
    let swap = hash("Swap(address,uint256,uint256,uint256,uint256,address)");
    check(&[swap, me, me], &["SWAP"]);
    check(&[swap, me], &[]);
    check(&[hash("Mint(address,uint256,uint256)"), me], &["LIQUIDITY"]);
    check(&[hash("PunkBought(uint256,uint256,address,address)"), me, me, me], &["MARKETPLACE"]);
    check(&[], &[]);
    // A log of the same topic from another contract is not a deposit of stake.
    check(&[staking::DEPOSIT_EVENT], &[]);
    assert_eq!(tags_of(call(2, &[1]), vec![staking::tests::a_deposit()]), ["STAKING"]);
}

#[test]
fn a_transaction_is_tagged_by_its_token_transfers() {
    let check = |ft: Option<TransferKind>, nft: Option<TransferKind>, topic, expected: &[&str]| {
        let mut builder =
            DecodedBlockBuilder::new(6).with(call(2, &[1]), vec![log(who(3), &[topic], &[])]);
        builder.tokens.ft = ft.map(|kind| ft_of(kind, 0)).into_iter().collect();
        builder.tokens.nft = nft.map(nft_of).into_iter().collect();
        assert_eq!(tags(builder), expected, "{ft:?} {nft:?} {topic}");
    };
    let (moved, minted, burnt) =
        (Some(TransferKind::Transfer), Some(TransferKind::Mint), Some(TransferKind::Burn));
    let other = B256::repeat_byte(1);
    assert_eq!(keccak256("Deposit(address,uint256)"), WRAPPED);
    assert_eq!(keccak256("Withdrawal(address,uint256)"), UNWRAPPED);
    check(moved, None, other, &["FT_TRANSFER"]);
    check(minted, None, other, &["MINT"]);
    check(burnt, None, other, &["BURN"]);
    check(minted, None, WRAPPED, &["WRAP"]);
    check(burnt, None, UNWRAPPED, &["UNWRAP"]);
    check(minted, None, UNWRAPPED, &["MINT"]);
    check(None, moved, other, &["NFT", "NFT_TRANSFER"]);
    check(None, minted, WRAPPED, &["MINT", "NFT"]);
    check(None, burnt, other, &["BURN", "NFT"]);
    check(moved, minted, other, &["FT_TRANSFER", "MINT", "NFT"]);
    // A transfer whose transaction does not exist is ignored.
    let mut builder = DecodedBlockBuilder::new(6).with(call(2, &[1]), vec![]);
    builder.tokens.ft = vec![ft_of(TransferKind::Transfer, 7)];
    assert_eq!(tags(builder), [""; 0]);
}

fn ft_of(kind: TransferKind, transaction_index: usize) -> FtTransfer {
    FtTransfer {
        token: who(3),
        from: who(4),
        to: who(5),
        amount: U256::ONE,
        kind,
        transaction_index,
        log_index: 0,
    }
}

fn nft_of(kind: TransferKind) -> NftTransfer {
    NftTransfer {
        collection: who(3),
        token_id: U256::ONE,
        from: who(4),
        to: who(5),
        quantity: U256::ONE,
        standard: NftStandard::Erc1155,
        kind,
        transaction_index: 0,
        log_index: 0,
        batch_index: 0,
    }
}
