//! Explains why a header or transaction in a node's JSON does not match the hash that the node reported.
//!
//! Guarantees: a part with only Ethereum's fields is reported as false; only fields and types that Ethereum does not
//! have, and transactions without a signature, are attributed to another chain. Leaves to others: headers that match
//! their hash.

use std::collections::BTreeMap;

use alloy_consensus::Header as EvmHeader;
use alloy_primitives::{B256, keccak256};
use serde::de::IgnoredAny;

use crate::block::{Block, TransactionForm};
use crate::mismatch::Mismatch;
use crate::transaction_json;

/// Limits on the field names in an error: their number, and the characters of each.
const NAMES_MAX: usize = 8;
const NAME_CHARS_MAX: usize = 40;

/// Fields of a block that are hashed with its header.
pub(crate) const HEADER_FIELDS: &[&str] = &[
    "baseFeePerGas",
    "beneficiary",
    "blobGasUsed",
    "blockAccessListHash",
    "difficulty",
    "excessBlobGas",
    "extraData",
    "gasLimit",
    "gasUsed",
    "logsBloom",
    "miner",
    "mixHash",
    "nonce",
    "number",
    "ommersHash",
    "parentBeaconBlockRoot",
    "parentHash",
    "receiptsRoot",
    "requestsHash",
    "sha3Uncles",
    "slotNumber",
    "stateRoot",
    "timestamp",
    "transactionsRoot",
    "withdrawalsRoot",
];

/// Fields that nodes show with a block but that are not hashed with its header. They include those of Arbitrum and
/// the BNB chain, whose headers are hashed like Ethereum's.
const SHOWN_WITH_BLOCK: &[&str] = &[
    "author",
    "hash",
    "l1BlockNumber",
    "milliTimestamp",
    "sealFields",
    "sendCount",
    "sendRoot",
    "size",
    "totalDifficulty",
    "transactions",
    "uncles",
    "withdrawals",
];

/// Fields of Ethereum's transaction types, and fields that nodes show with a transaction.
pub(crate) const TRANSACTION_FIELDS: &[&str] = &[
    "accessList",
    "authorizationList",
    "blobVersionedHashes",
    "blockHash",
    "blockNumber",
    "blockTimestamp",
    "chainId",
    "condition",
    "creates",
    "data",
    "from",
    "gas",
    "gasPrice",
    "hash",
    "input",
    "maxFeePerBlobGas",
    "maxFeePerGas",
    "maxPriorityFeePerGas",
    "nonce",
    "publicKey",
    "r",
    "raw",
    "s",
    "standardV",
    "to",
    "transactionIndex",
    "type",
    "v",
    "value",
    "yParity",
];

/// Explains why a header in JSON does not hash to `claimed`.
pub(crate) fn header(json: &[u8], claimed: B256) -> Mismatch {
    let header: EvmHeader = match serde_json::from_slice(json) {
        Ok(header) => header,
        Err(error) => return Mismatch::UnreadableHeader { why: error.to_string() },
    };
    let computed = header.hash_slow();
    let unknown = unknown_fields(json, &[HEADER_FIELDS, SHOWN_WITH_BLOCK]);
    if unknown.is_empty() {
        return Mismatch::HeaderHash { computed, claimed, unknown };
    }
    Mismatch::ForeignHeader { computed, claimed, unknown }
}

/// Explains why the header of a block, in JSON, does not hash to the block's hash. A chain with its own transactions
/// may have its own hashes, so they are named.
pub(crate) fn block(json: &[u8], block: &Block) -> Mismatch {
    let header = header(json, block.at.hash);
    let Mismatch::HeaderHash { computed, claimed, .. } = header else {
        return header;
    };
    let own = block.transactions.iter().enumerate().find_map(|(index, of)| match &of.form {
        TransactionForm::Foreign(json) => match transaction(json, index, of.hash) {
            Mismatch::ForeignTransaction { index, what } => Some((index, what)),
            _ => None,
        },
        TransactionForm::Canonical(_) => None,
    });
    match own {
        Some((index, what)) => Mismatch::ForeignBlock { computed, claimed, index, what },
        None => header,
    }
}

/// Explains why transaction `index`, in JSON, does not hash to `claimed`.
pub(crate) fn transaction(json: &[u8], index: usize, claimed: B256) -> Mismatch {
    let kind = transaction_json::foreign_type(json);
    if !transaction_json::is_known_type(kind) {
        let what = format!("the type {kind:#04x}, which Logmill does not know");
        return Mismatch::ForeignTransaction { index, what };
    }
    let unknown = unknown_fields(json, &[TRANSACTION_FIELDS]);
    if !unknown.is_empty() {
        let what = format!("fields that Logmill does not know ({})", unknown.join(", "));
        return Mismatch::ForeignTransaction { index, what };
    }
    if transaction_json::is_unsigned(json) {
        let what = "an `r` and an `s` that are no signature, as for an impersonated account";
        return Mismatch::ForeignTransaction { index, what: what.to_owned() };
    }
    match transaction_json::encode(json) {
        Ok(bytes) => Mismatch::TransactionHash { index, computed: keccak256(bytes), claimed },
        Err(why) => Mismatch::UnreadableTransaction { index, why },
    }
}

/// The non-null fields of an object that are in none of the lists.
fn unknown_fields(json: &[u8], known: &[&[&str]]) -> Vec<String> {
    let fields: BTreeMap<String, Option<IgnoredAny>> =
        serde_json::from_slice(json).unwrap_or_default();
    let present = fields.into_iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name);
    let unknown = present.filter(|name| !known.iter().any(|list| list.contains(&name.as_str())));
    let shown = unknown.map(|name| -> String {
        name.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect()
    });
    shown.take(NAMES_MAX).collect()
}
