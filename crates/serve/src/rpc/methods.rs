//! The table of served methods and their parameters. `rpc_modules` and `rpc.discover` are generated from it.
//!
//! Guarantees: a method outside the table is never answered from stored data, and no method accepts more parameters
//! than its row lists; so the discovered document matches what is served. Leaves to others: answering
//! (`super::Rpc::answer_known`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

#[derive(Debug)]
pub struct Method {
    pub name: &'static str,
    pub params: &'static [Param],
    result: Kind,
    summary: &'static str,
}

/// A positional parameter.
#[derive(Debug)]
pub struct Param {
    name: &'static str,
    kind: Kind,
    is_required: bool,
}

/// JSON form of a value.
#[derive(Clone, Copy, Debug)]
enum Kind {
    AccessList,
    Any,
    Block,
    BlockOrHash,
    Boolean,
    Count,
    Data,
    DataList,
    FeeHistory,
    Filter,
    Hash,
    Id,
    Logs,
    Object,
    OrNull(&'static Kind),
    Paging,
    Percentiles,
    Quantity,
    Receipts,
    Subscription,
    SyncState,
    Text,
}

const fn method(
    name: &'static str,
    params: &'static [Param],
    result: Kind,
    summary: &'static str,
) -> Method {
    Method { name, params, result, summary }
}

const fn needs(name: &'static str, kind: Kind) -> Param {
    Param { name, kind, is_required: true }
}

const fn takes(name: &'static str, kind: Kind) -> Param {
    Param { name, kind, is_required: false }
}

const BLOCK: &[Param] = &[needs("block", Kind::Block)];
const BLOCK_HASH: &[Param] = &[needs("blockHash", Kind::Hash)];
const BLOCK_OR_HASH: &[Param] = &[needs("block", Kind::BlockOrHash)];
const BLOCK_AND_INDEX: &[Param] = &[needs("block", Kind::Block), needs("index", Kind::Quantity)];
const HASH_AND_INDEX: &[Param] = &[needs("blockHash", Kind::Hash), needs("index", Kind::Quantity)];
const BLOCK_AND_WHOLE: &[Param] =
    &[needs("block", Kind::Block), takes("wholeTransactions", Kind::Boolean)];
const HASH_AND_WHOLE: &[Param] =
    &[needs("blockHash", Kind::Hash), takes("wholeTransactions", Kind::Boolean)];
const TRANSACTION_HASH: &[Param] = &[needs("transactionHash", Kind::Hash)];
const FILTER: &[Param] = &[needs("filter", Kind::Filter)];
const FILTER_ID: &[Param] = &[needs("id", Kind::Id)];

const OBJECT_OR_NULL: Kind = Kind::OrNull(&Kind::Object);
const DATA_OR_NULL: Kind = Kind::OrNull(&Kind::Data);
const QUANTITY_OR_NULL: Kind = Kind::OrNull(&Kind::Quantity);

/// Every served method, sorted by name.
pub const METHODS: &[Method] = &[
    method("debug_getRawBlock", BLOCK_OR_HASH, DATA_OR_NULL, "A block in RLP"),
    method("debug_getRawHeader", BLOCK_OR_HASH, DATA_OR_NULL, "A header in RLP"),
    method(
        "debug_getRawReceipts",
        BLOCK_OR_HASH,
        Kind::OrNull(&Kind::DataList),
        "The receipts of a block as EIP-2718 bytes",
    ),
    method(
        "debug_getRawTransaction",
        TRANSACTION_HASH,
        DATA_OR_NULL,
        "A transaction as EIP-2718 bytes",
    ),
    method("eth_baseFee", &[], QUANTITY_OR_NULL, "The base fee of the next block"),
    method("eth_blobBaseFee", &[], QUANTITY_OR_NULL, "The price of blob gas at the head"),
    method("eth_blockNumber", &[], Kind::Quantity, "The number of the newest block"),
    method("eth_chainId", &[], Kind::Quantity, "The id of the chain"),
    method(
        "eth_feeHistory",
        &[
            needs("blockCount", Kind::Count),
            needs("newestBlock", Kind::Block),
            takes("rewardPercentiles", Kind::Percentiles),
        ],
        Kind::FeeHistory,
        "Base fees, gas usage and priority fees of blocks",
    ),
    method(
        "eth_getBlockAccessList",
        BLOCK_OR_HASH,
        Kind::OrNull(&Kind::AccessList),
        "The access list of a block (EIP-7928)",
    ),
    method("eth_getBlockByHash", HASH_AND_WHOLE, OBJECT_OR_NULL, "A block by its hash"),
    method("eth_getBlockByNumber", BLOCK_AND_WHOLE, OBJECT_OR_NULL, "A block by its number or tag"),
    method(
        "eth_getBlockReceipts",
        BLOCK_OR_HASH,
        Kind::OrNull(&Kind::Receipts),
        "The receipts of a block",
    ),
    method(
        "eth_getBlockTransactionCountByHash",
        BLOCK_HASH,
        QUANTITY_OR_NULL,
        "The number of transactions in a block",
    ),
    method(
        "eth_getBlockTransactionCountByNumber",
        BLOCK,
        QUANTITY_OR_NULL,
        "The number of transactions in a block",
    ),
    method(
        "eth_getFilterChanges",
        FILTER_ID,
        Kind::Any,
        "The changes since a filter was last polled",
    ),
    method("eth_getFilterLogs", FILTER_ID, Kind::Logs, "All logs of a filter"),
    method("eth_getHeaderByHash", BLOCK_HASH, OBJECT_OR_NULL, "A header by the hash of its block"),
    method(
        "eth_getHeaderByNumber",
        BLOCK,
        OBJECT_OR_NULL,
        "A header by the number or tag of its block",
    ),
    method("eth_getLogs", FILTER, Kind::Logs, "The logs that match a filter"),
    method(
        "eth_getRawTransactionByBlockHashAndIndex",
        HASH_AND_INDEX,
        DATA_OR_NULL,
        "A transaction of a block as EIP-2718 bytes",
    ),
    method(
        "eth_getRawTransactionByBlockNumberAndIndex",
        BLOCK_AND_INDEX,
        DATA_OR_NULL,
        "A transaction of a block as EIP-2718 bytes",
    ),
    method(
        "eth_getRawTransactionByHash",
        TRANSACTION_HASH,
        DATA_OR_NULL,
        "A transaction as EIP-2718 bytes",
    ),
    method(
        "eth_getTransactionByBlockHashAndIndex",
        HASH_AND_INDEX,
        OBJECT_OR_NULL,
        "A transaction of a block",
    ),
    method(
        "eth_getTransactionByBlockNumberAndIndex",
        BLOCK_AND_INDEX,
        OBJECT_OR_NULL,
        "A transaction of a block",
    ),
    method("eth_getTransactionByHash", TRANSACTION_HASH, OBJECT_OR_NULL, "A transaction"),
    method(
        "eth_getTransactionReceipt",
        TRANSACTION_HASH,
        OBJECT_OR_NULL,
        "The receipt of a transaction",
    ),
    method(
        "eth_getUncleByBlockHashAndIndex",
        HASH_AND_INDEX,
        OBJECT_OR_NULL,
        "The header of an uncle of a block",
    ),
    method(
        "eth_getUncleByBlockNumberAndIndex",
        BLOCK_AND_INDEX,
        OBJECT_OR_NULL,
        "The header of an uncle of a block",
    ),
    method(
        "eth_getUncleCountByBlockHash",
        BLOCK_HASH,
        QUANTITY_OR_NULL,
        "The number of uncles of a block",
    ),
    method(
        "eth_getUncleCountByBlockNumber",
        BLOCK,
        QUANTITY_OR_NULL,
        "The number of uncles of a block",
    ),
    method("eth_newBlockFilter", &[], Kind::Id, "A filter that reports new blocks"),
    method("eth_newFilter", FILTER, Kind::Id, "A filter that reports new logs"),
    method(
        "eth_subscribe",
        &[needs("subscription", Kind::Subscription), takes("filter", Kind::Filter)],
        Kind::Id,
        "Notifications on this WebSocket",
    ),
    method(
        "eth_syncing",
        &[],
        Kind::SyncState,
        "How far the newest stored block is behind the chain",
    ),
    method("eth_uninstallFilter", FILTER_ID, Kind::Boolean, "Removes a filter"),
    method("eth_unsubscribe", FILTER_ID, Kind::Boolean, "Ends a subscription"),
    method("logmill_coverage", &[], Kind::Object, "The stored blocks of the chain"),
    method("logmill_explain", FILTER, Kind::Object, "How the index answers a filter"),
    method(
        "logmill_getLogs",
        &[needs("filter", Kind::Filter), takes("paging", Kind::Paging)],
        Kind::Object,
        "A page of logs, with a cursor for the next",
    ),
    method("net_listening", &[], Kind::Boolean, "Whether requests are served"),
    method("net_version", &[], Kind::Text, "The id of the chain in decimal digits"),
    method("rpc.discover", &[], Kind::Object, "This document"),
    method("rpc_modules", &[], Kind::Object, "The namespaces that are served"),
    method("web3_clientVersion", &[], Kind::Text, "The name and version of this program"),
    method("web3_sha3", &[needs("data", Kind::Data)], Kind::Hash, "The Keccak-256 hash of bytes"),
];

pub fn find(name: &str) -> Option<&'static Method> {
    let at = METHODS.binary_search_by(|method| method.name.cmp(name)).ok()?;
    METHODS.get(at)
}

/// The namespaces of the table and of the methods that are passed on.
pub(super) fn modules(passed_on: &[String]) -> Value {
    let names = METHODS.iter().map(|method| method.name);
    let names = names.chain(passed_on.iter().map(String::as_str));
    let spaces = names.filter_map(|name| name.split_once('_')).map(|(space, _)| (space, "1.0"));
    json!(spaces.collect::<BTreeMap<_, _>>())
}

/// The OpenRPC document of the table.
pub(super) fn document(version: &str, passed_on: &[String]) -> Value {
    let methods = METHODS.iter().map(|method| {
        let params = method.params.iter().map(|param| {
            let schema = param.kind.schema();
            json!({"name": param.name, "required": param.is_required, "schema": schema})
        });
        json!({
            "name": method.name,
            "summary": method.summary,
            "paramStructure": "by-position",
            "params": params.collect::<Value>(),
            "result": {"name": "result", "schema": method.result.schema()},
        })
    });
    json!({
        "openrpc": "1.3.2",
        "info": {"title": "Logmill", "version": version, "description":
            "JSON-RPC over a chain's finalized logs, blocks and receipts. The methods in x-passed-on are \
             answered by the chain's nodes."},
        "methods": methods.collect::<Value>(),
        "x-passed-on": passed_on,
    })
}

impl Kind {
    fn schema(self) -> Value {
        let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
        let list = |items: Value| json!({"type": "array", "items": items});
        let quantity = || text("^0x(0|[1-9a-f][0-9a-f]{0,15})$");
        let hash = || text("^0x[0-9a-fA-F]{64}$");
        let tags = || json!({"enum": ["earliest", "finalized", "safe", "latest"]});
        let block = || json!({"anyOf": [quantity(), tags()]});
        let object = || json!({"type": "object"});
        match self {
            Self::AccessList | Self::Logs | Self::Receipts => list(object()),
            Self::Any => json!({}),
            Self::Block => block(),
            Self::BlockOrHash => json!({"anyOf": [block(), hash(), {
                "type": "object",
                "properties": {"blockNumber": block(), "blockHash": hash()},
            }]}),
            Self::Boolean => json!({"type": "boolean"}),
            Self::Count => json!({"anyOf": [quantity(), {"type": "integer", "minimum": 0}]}),
            Self::Data => text("^0x([0-9a-fA-F]{2})*$"),
            Self::DataList => list(Self::Data.schema()),
            Self::Filter => filter_schema(&block(), &hash()),
            Self::Hash => hash(),
            Self::Id => text("^0x[0-9a-f]{1,32}$"),
            Self::FeeHistory | Self::Object => object(),
            Self::OrNull(kind) => json!({"anyOf": [kind.schema(), {"type": "null"}]}),
            Self::Paging => json!({
                "type": "object",
                "properties": {"cursor": {"type": "string"}, "limit": Self::Count.schema()},
                "additionalProperties": false,
            }),
            Self::Percentiles => list(json!({"type": "number", "minimum": 0, "maximum": 100})),
            Self::Quantity => quantity(),
            Self::Subscription => json!({"enum": ["newHeads", "logs", "syncing"]}),
            Self::SyncState => json!({"anyOf": [{"const": false}, object()]}),
            Self::Text => json!({"type": "string"}),
        }
    }
}

fn filter_schema(block: &Value, hash: &Value) -> Value {
    let address = json!({"type": "string", "pattern": "^0x[0-9a-fA-F]{40}$"});
    let any_of =
        |one: &Value| json!({"anyOf": [{"type": "null"}, one, {"type": "array", "items": one}]});
    json!({
        "type": "object",
        "properties": {
            "fromBlock": block,
            "toBlock": block,
            "blockHash": hash,
            "address": any_of(&address),
            "topics": {"type": "array", "maxItems": 4, "items": any_of(hash)},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_so_that_every_method_is_found() {
        assert!(METHODS.is_sorted_by(|one, next| one.name < next.name));
        for method in METHODS {
            assert_eq!(find(method.name).map(|found| found.name), Some(method.name));
            let optional = method.params.iter().position(|param| !param.is_required);
            let after = optional.map_or(&[][..], |at| &method.params[at..]);
            assert!(after.iter().all(|param| !param.is_required), "{}", method.name);
        }
        assert!(find("eth_nothing").is_none());
    }

    #[test]
    fn the_document_matches_the_table() {
        let document = document("1.2.3", &["eth_call".to_owned()]);
        let methods = document["methods"].as_array().expect("a list");
        let names: Vec<_> = methods.iter().map(|method| method["name"].as_str()).collect();
        let expected: Vec<_> = METHODS.iter().map(|method| Some(method.name)).collect();
        assert_eq!(names, expected);
        for (said, method) in methods.iter().zip(METHODS) {
            assert_eq!(said["params"].as_array().map(Vec::len), Some(method.params.len()));
            assert!(said["result"]["schema"].is_object() && said["summary"].is_string());
        }
        assert_eq!(document["x-passed-on"], json!(["eth_call"]));
        assert_eq!(modules(&["trace_block".to_owned()])["trace"], "1.0");
        assert_eq!(modules(&[])["debug"], "1.0");
        assert!(modules(&[]).get("trace").is_none());
    }
}
