//! Why a header or a transaction that a node gave as JSON does not have the hash that the node gave with it.
//!
//! Guarantees: what Ethereum's fields alone explain is called false; only fields and types that Ethereum does not have
//! are taken for those of another chain. Leaves to others: the headers that do have their hash.

use std::collections::BTreeMap;

use alloy_consensus::Header as EvmHeader;
use alloy_primitives::{B256, keccak256};
use serde::de::IgnoredAny;

use super::Mismatch;
use crate::evm::transaction;

/// The most names of fields in an error, and the most characters of each.
const NAMES_MAX: usize = 8;
const NAME_CHARS_MAX: usize = 40;

/// Fields of a block that are hashed with its header.
const HEADER_FIELDS: &[&str] = &[
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

/// Fields that nodes show with a block and that are not hashed with its header. Those of Arbitrum and of the BNB chain
/// are among them: their headers are hashed as Ethereum's are.
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

/// Fields of a transaction: those of its types, and what nodes show with them.
const TRANSACTION_FIELDS: &[&str] = &[
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

/// What is wrong with a header in JSON whose fields do not have the hash `claimed`.
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

/// What is wrong with transaction `index` in JSON, whose fields do not have the hash `claimed`.
pub(crate) fn transaction(json: &[u8], index: usize, claimed: B256) -> Mismatch {
    let kind = transaction::foreign_type(json);
    if !transaction::is_known_type(kind) {
        let what = format!("the type {kind:#04x}, which Logmill does not know");
        return Mismatch::ForeignTransaction { index, what };
    }
    let unknown = unknown_fields(json, &[TRANSACTION_FIELDS]);
    if !unknown.is_empty() {
        let what = format!("fields that Logmill does not know ({})", unknown.join(", "));
        return Mismatch::ForeignTransaction { index, what };
    }
    match transaction::encode(json) {
        Ok(bytes) => Mismatch::TransactionHash { index, computed: keccak256(bytes), claimed },
        Err(why) => Mismatch::UnreadableTransaction { index, why },
    }
}

/// The fields of an object that are in none of the lists, without those that are null.
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
