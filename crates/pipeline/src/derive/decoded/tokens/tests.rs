//! Every shape of a transfer, and logs that only resemble one.

use std::slice;

use alloy_primitives::{Bytes, address, keccak256};
use logmill_chain::Topics;

use super::*;
use crate::derive::block_builder::{
    BlockBuilder, account, deposit, erc20, erc721, erc1155, log, withdrawal, word,
};

const WETH: Address = address!("0xc02aaa39b223fe8d0a0e5c4f27ead9083c756cc2");
const KITTIES: Address = address!("0x06012c8cf97bead5deae237070f9587f8e7a266d");
const ZERO: Address = Address::ZERO;

fn tokens(transactions: &[&[Log]]) -> Tokens {
    let builder = transactions
        .iter()
        .fold(BlockBuilder::new(7), |builder, logs| builder.transaction(logs.iter().cloned()));
    Tokens::of(&builder.block(), TokenSettings::known())
}

/// From, to, amount and log index of the fungible transfers.
fn ft(transactions: &[&[Log]]) -> Vec<(Address, Address, u64, usize)> {
    let brief = |it: &FtTransfer| (it.from, it.to, it.amount.to(), it.log_index);
    tokens(transactions).ft.iter().map(brief).collect()
}

#[test]
fn the_events_have_the_hashes_of_their_signatures() {
    for (topic, signature) in [
        (TRANSFER, "Transfer(address,address,uint256)"),
        (TRANSFER_SINGLE, "TransferSingle(address,address,address,uint256,uint256)"),
        (TRANSFER_BATCH, "TransferBatch(address,address,address,uint256[],uint256[])"),
        (DEPOSIT, "Deposit(address,uint256)"),
        (WITHDRAWAL, "Withdrawal(address,uint256)"),
    ] {
        assert_eq!(keccak256(signature), topic, "{signature}");
    }
}

#[test]
fn the_zero_address_makes_a_mint_or_a_burn() {
    let (a, b, token) = (account(1), account(2), account(3));
    let found = tokens(&[
        &[erc20(token, ZERO, a, U256::MAX), erc20(token, a, b, U256::ONE)],
        &[],
        &[erc20(token, b, ZERO, U256::ZERO), erc20(token, ZERO, ZERO, U256::ONE)],
    ]);
    let kinds: Vec<_> =
        found.ft.iter().map(|it| (it.kind, it.transaction_index, it.log_index)).collect();
    let (mint, burn) = (TransferKind::Mint, TransferKind::Burn);
    let expected = [(mint, 0, 0), (TransferKind::Transfer, 0, 1), (burn, 2, 2)];
    assert_eq!(kinds[..3], expected);
    assert_eq!(kinds[3].0, TransferKind::Transfer, "from nowhere to nowhere");
    assert_eq!(found.ft[0].amount, U256::MAX);
    assert!(found.nft.is_empty());
}

#[test]
fn four_topics_are_an_item_and_three_an_amount() {
    let (a, b, token) = (account(1), account(2), account(3));
    let found = tokens(&[&[erc721(token, a, b, U256::from(77)), erc20(token, a, b, U256::ONE)]]);
    assert_eq!((found.ft.len(), found.nft.len()), (1, 1));
    let item = &found.nft[0];
    assert_eq!((item.token_id, item.quantity), (U256::from(77), U256::ONE));
    assert_eq!((item.standard, item.batch_index), (NftStandard::Erc721, 0));
}

#[test]
fn a_batch_counts_its_items_even_the_same_one_twice() {
    let (a, b, token) = (account(1), account(2), account(3));
    let found = tokens(&[&[
        erc1155(token, a, b, &[(5, 6)]),
        erc1155(token, ZERO, b, &[(1, 10), (1, 20), (2, 0)]),
        erc1155(token, a, b, &[]),
    ]]);
    let brief = |it: &NftTransfer| {
        (it.log_index, it.batch_index, it.token_id.to::<u64>(), it.quantity.to::<u64>(), it.kind)
    };
    let found: Vec<_> = found.nft.iter().map(brief).collect();
    let mint = TransferKind::Mint;
    let expected = [
        (0, 0, 5, 6, TransferKind::Transfer),
        (1, 0, 1, 10, mint),
        (1, 1, 1, 20, mint),
        (1, 2, 2, 0, mint),
    ];
    assert_eq!(found, expected);
}

#[test]
fn only_known_tokens_wrap() {
    let (a, other) = (account(1), account(3));
    let logs = [
        deposit(WETH, a, U256::from(5)),
        withdrawal(WETH, a, U256::from(2)),
        deposit(other, a, U256::from(7)),
        withdrawal(other, a, U256::from(7)),
    ];
    assert_eq!(ft(&[&logs]), [(ZERO, a, 5, 0), (a, ZERO, 2, 1)]);
    let settings = TokenSettings { wrapped_native: [other].into(), ..TokenSettings::default() };
    let block = BlockBuilder::new(1).transaction(logs).block();
    let found: Vec<_> =
        Tokens::of(&block, &settings).ft.iter().map(|it| (it.token, it.log_index)).collect();
    assert_eq!(found, [(other, 2), (other, 3)]);
}

#[test]
fn a_deposit_that_is_a_transfer_too_counts_once() {
    let (a, b) = (account(1), account(2));
    let amount = U256::from(5);
    let check = |transactions: &[&[Log]], expected: &[(Address, Address, u64, usize)]| {
        assert_eq!(ft(transactions), expected, "{transactions:?}");
    };
    let (transfer, wrap) = (erc20(WETH, ZERO, a, amount), deposit(WETH, a, amount));
    // In either order, and as often as both occur.
    check(&[&[transfer.clone(), wrap.clone()]], &[(ZERO, a, 5, 0)]);
    check(&[&[wrap.clone(), transfer.clone()]], &[(ZERO, a, 5, 1)]);
    check(&[&[transfer.clone(), wrap.clone(), wrap.clone()]], &[(ZERO, a, 5, 0), (ZERO, a, 5, 2)]);
    check(&[&[withdrawal(WETH, a, amount), erc20(WETH, a, ZERO, amount)]], &[(a, ZERO, 5, 1)]);
    // Not if transaction, account, amount, token or direction differ.
    let (first, second) = (slice::from_ref(&transfer), slice::from_ref(&wrap));
    check(&[first, second], &[(ZERO, a, 5, 0), (ZERO, a, 5, 1)]);
    check(&[&[transfer.clone(), deposit(WETH, b, amount)]], &[(ZERO, a, 5, 0), (ZERO, b, 5, 1)]);
    check(&[&[transfer.clone(), deposit(WETH, a, U256::ONE)]], &[(ZERO, a, 5, 0), (ZERO, a, 1, 1)]);
    check(&[&[erc20(b, ZERO, a, amount), wrap]], &[(ZERO, a, 5, 0), (ZERO, a, 5, 1)]);
    check(&[&[transfer, withdrawal(WETH, a, amount)]], &[(ZERO, a, 5, 0), (a, ZERO, 5, 1)]);
}

#[test]
fn early_collections_may_index_any_arguments() {
    let (a, b) = (account(1).into_word(), account(2).into_word());
    let check = |contract: Address, topics: &[B256], data: &[B256], expected: Option<u64>| {
        let found = tokens(&[&[log(contract, topics, data)]]);
        let id = found.nft.first().map(|it| it.token_id.to::<u64>());
        assert_eq!((id, found.ft.is_empty()), (expected, true), "{topics:?} {data:?}");
    };
    check(KITTIES, &[TRANSFER], &[a, b, word(9)], Some(9));
    check(KITTIES, &[TRANSFER, a, b], &[word(9)], Some(9));
    check(KITTIES, &[TRANSFER, a, b, word(9)], &[], Some(9));
    check(KITTIES, &[TRANSFER, a], &[b, word(9)], None);
    check(KITTIES, &[TRANSFER], &[a, b], None);
    check(KITTIES, &[TRANSFER], &[a, b, word(9), word(1)], None);
    // From any other contract it may be an amount.
    check(account(3), &[TRANSFER], &[a, b, word(9)], None);
}

#[test]
fn logs_that_only_resemble_transfers_are_skipped() {
    let (a, b) = (account(1).into_word(), account(2).into_word());
    let dirty = B256::repeat_byte(1);
    let w = word(1);
    let check = |topics: &[B256], data: &[B256]| {
        for contract in [WETH, KITTIES, account(3)] {
            let found = tokens(&[&[log(contract, topics, data)]]);
            assert_eq!(found, Tokens::default(), "{contract} {topics:?} {data:?}");
        }
    };
    check(&[], &[]);
    check(&[TRANSFER], &[]);
    check(&[TRANSFER, a], &[w]);
    check(&[TRANSFER, a, b], &[]);
    check(&[TRANSFER, a, b], &[w, w]);
    check(&[TRANSFER, dirty, b], &[w]);
    check(&[TRANSFER, a, dirty], &[w]);
    check(&[TRANSFER, a, b, w], &[w]);
    check(&[TRANSFER, dirty, b, w], &[]);
    check(&[TRANSFER_SINGLE, a, a, b], &[w]);
    check(&[TRANSFER_SINGLE, a, a, b], &[w, w, w]);
    check(&[TRANSFER_SINGLE, a, a], &[b, w, w]);
    check(&[TRANSFER_SINGLE, dirty, a, b], &[w, w]);
    check(&[TRANSFER_SINGLE, a, dirty, b], &[w, w]);
    check(&[DEPOSIT], &[a, w]);
    check(&[DEPOSIT, a], &[]);
    check(&[DEPOSIT, a], &[w, w]);
    check(&[DEPOSIT, dirty], &[w]);
    check(&[WITHDRAWAL, a, w], &[]);
}

#[test]
fn a_batch_with_inconsistent_arrays_is_skipped() {
    let party = account(1).into_word();
    let topics = [TRANSFER_BATCH, party, party, account(2).into_word()];
    let check = |data: &[u64], expected: Option<usize>| {
        let data: Vec<B256> = data.iter().map(|number| word(*number)).collect();
        let found = tokens(&[&[log(account(3), &topics, &data)]]).nft.len();
        assert_eq!(found, expected.unwrap_or(0), "{data:?}");
    };
    check(&[64, 128, 1, 7, 1, 8], Some(1));
    // Both offsets may point to the same array.
    check(&[64, 64, 2, 7, 8], Some(2));
    check(&[64, 128, 1, 7, 2, 8, 8], None);
    check(&[64, 128, 2, 7, 1, 8], None);
    check(&[64, 128, 1, 7, 9, 8], None);
    check(&[64, u64::MAX, 1, 7, 1, 8], None);
    check(&[u64::MAX, 128, 1, 7, 1, 8], None);
    check(&[64, 128, u64::MAX, 7, u64::MAX, 8], None);
    check(&[64, 160, 1, 7, 1], None);
    check(&[64], None);
    check(&[], None);
}

#[test]
fn data_with_partial_words_is_skipped() {
    let (a, b) = (account(1).into_word(), account(2).into_word());
    let check = |address, topics: &[B256], length: usize| {
        let topics: Topics = topics.iter().copied().collect();
        let log = Log { address, topics, data: Bytes::from(vec![0; length]) };
        assert_eq!(tokens(&[&[log]]), Tokens::default(), "{length}");
    };
    check(account(3), &[TRANSFER, a, b], 33);
    check(account(3), &[TRANSFER, a, b, a], 1);
    check(account(3), &[TRANSFER_SINGLE, a, a, b], 65);
    check(WETH, &[DEPOSIT, a], 31);
    check(KITTIES, &[TRANSFER], 97);
}

#[test]
fn changes_are_sums_by_account_and_token() {
    let (a, b, token) = (account(1), account(2), account(3));
    let five = U256::from(5);
    let found = tokens(&[
        &[erc20(token, ZERO, a, five), erc20(token, a, b, U256::ONE), erc20(token, a, a, five)],
        &[erc20(WETH, a, b, five)],
        &[erc20(token, b, a, U256::from(3))],
    ]);
    let brief = |it: &FtChange| {
        let counts = (it.transfers, it.transactions, it.log_index);
        (it.account, it.token, it.delta.to_string(), counts)
    };
    let found: Vec<_> = found.ft_changes.iter().map(brief).collect();
    let row = |account, token, delta: &str, counts| (account, token, delta.to_owned(), counts);
    let expected = [
        row(a, token, "7", (4, 2, 4)),
        row(a, WETH, "-5", (1, 1, 3)),
        row(b, token, "-2", (2, 2, 4)),
        row(b, WETH, "5", (1, 1, 3)),
    ];
    assert_eq!(found, expected);
}
