//! Classifies the errors of nodes. Nodes use the same codes for many things, so messages are matched as well.
//!
//! Guarantees: pure. An unrecognized error is [`ErrorClass::Other`]. A contract's revert reason is not mistaken for a
//! message of the node. Leaves to others: what to do.

use super::rpc::{RpcError, quantity};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The call was executed and the contract failed: that is the answer.
    Reverted,
    /// The range or the result is too large.
    TooMuch {
        /// The number of blocks that the node suggests.
        blocks: Option<u64>,
    },
    BatchTooLarge,
    /// The node accepts no batches.
    NoBatches,
    Throttled,
    /// The node took too long and gave up.
    Slow,
    NoMethod,
    /// The node does not keep history that far back.
    Pruned,
    /// The node does not know the block.
    NoBlock,
    Other,
}

const PRUNED: &[&str] = &[
    "pruned",
    "history unavailable",
    "historical state",
    "history is not available",
    "missing trie node",
    "before the earliest available",
    "below the earliest",
    "old data not available",
    "is not available on this node",
    "state is not available",
    "state not available",
    "state unavailable",
    "no state available",
    "no state found",
    "state already discarded",
];

/// Prefixes of a node's message when a contract fails; the contract's own reason may follow.
const REVERTED: &[&str] = &[
    "execution reverted",
    "vm execution error",
    "vm exception while processing",
    "evm error",
    "reverted",
    "revert",
    "out of gas",
    "invalid opcode",
    "opcode 0x",
    "bad instruction",
    "invalid jump",
    "bad jump",
    "stack underflow",
    "stack overflow",
    "stack limit reached",
    "write protection",
    "return data out of bounds",
    "gas uint64 overflow",
    "max call depth exceeded",
];

const NO_BATCHES: &[&str] = &[
    "batch requests are not",
    "batch is not supported",
    "batching is not",
    "batch not supported",
    "batches are not",
    "batch request is not",
    "batch requests not",
];

const BATCH_TOO_LARGE: &[&str] = &[
    "batch too large",
    "batch size",
    "batch limit",
    "too many requests in batch",
    "maximum batch",
    "max batch",
    "batch of more than",
    "batch items",
    "calls in batch",
    "response too large",
    "content too large",
    "request entity too large",
    "payload too large",
    "exceeds the limit of response",
    "response size exceeded",
    "response size is larger",
];

const TOO_MUCH: &[&str] = &[
    "block range",
    "blocks range",
    "range is too",
    "range too large",
    "too wide",
    "max range",
    "maximum range",
    "maximum allowed range",
    "range limit",
    "exceeds the range",
    "too many results",
    "too many logs",
    "more than 10000 results",
    "query returned more than",
    "max results",
    "returns too many",
    "response size should not",
    "log response size exceeded",
    "logs matched by query exceeds",
    "logs over",
    "eth_getlogs is limited",
    "eth_getlogs and eth_newfilter are limited",
    "query exceeds",
    "should work",
];

const THROTTLED: &[&str] = &[
    "rate limit",
    "rate-limit",
    "ratelimit",
    "too many requests",
    "request limit",
    "compute units per second",
    "capacity exceeded",
    "quota",
    "throttle",
    "exceeded its throughput",
    "daily request count exceeded",
    "call rate",
];

const SLOW: &[&str] =
    &["timed out", "timeout", "took too long", "deadline exceeded", "execution aborted"];

const NO_METHOD: &[&str] = &[
    "method not found",
    "does not exist/is not available",
    "method does not exist",
    "method not supported",
    "unsupported method",
    "method is not supported",
    "method is not available",
    "is not supported",
    "not whitelisted",
    "method not allowed",
    "unknown method",
    "not implemented",
];

const NO_BLOCK: &[&str] = &[
    "block not found",
    "header not found",
    "unknown block",
    "header for hash not found",
    "cannot find block",
    "could not find block",
    "resource not found",
    "beyond current head",
    "block does not exist",
    "in the future",
    "requested resource not found",
    "indexing is in progress",
];

/// Classifies a node's error by its code and message.
pub fn classify_message(code: i64, message: &str) -> ErrorClass {
    classify_error(&RpcError { code, message: message.to_owned(), suggested: None, data: None })
}

pub(super) fn classify_error(error: &RpcError) -> ErrorClass {
    let message = error.message.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    // This must come first: the revert reason is chosen by a stranger, and could say "rate limit" to make the node
    // rest.
    if matches!(error.code, 3 | -32_015) || REVERTED.iter().any(|word| message.starts_with(word)) {
        return ErrorClass::Reverted;
    }
    if error.code == 4444 || has(PRUNED) {
        return ErrorClass::Pruned;
    }
    if has(NO_BATCHES) {
        return ErrorClass::NoBatches;
    }
    // Before the method: "block range … not supported".
    if has(TOO_MUCH) && !has(NO_BLOCK) {
        return ErrorClass::TooMuch { blocks: suggested(error, &message) };
    }
    if has(THROTTLED) || error.code == 429 {
        return ErrorClass::Throttled;
    }
    if has(BATCH_TOO_LARGE) {
        return ErrorClass::BatchTooLarge;
    }
    if error.code == -32_601 || error.code == -32_004 || has(NO_METHOD) {
        return ErrorClass::NoMethod;
    }
    if error.code == -39_001 || error.code == -32_001 || has(NO_BLOCK) {
        return ErrorClass::NoBlock;
    }
    if has(SLOW) || matches!(error.code, -32_002 | -32_016) {
        return ErrorClass::Slow;
    }
    // Used for any "limit exceeded"; a smaller request helps in every case.
    if error.code == -32_005 {
        return ErrorClass::TooMuch { blocks: suggested(error, &message) };
    }
    ErrorClass::Other
}

/// Whether the error for a tag means that there is no such block *yet*.
pub(super) fn is_young(error: &RpcError) -> bool {
    let message = error.message.to_lowercase();
    let unknown = ["not found", "unknown block", "not available yet", "no finalized", "no safe"];
    error.code == -39_001 || unknown.iter().any(|words| message.contains(words))
}

/// Whether the error for a tag means that the node does not know the tag, rather than that it failed.
pub(super) fn is_unknown_tag(error: &RpcError) -> bool {
    if classify_error(error) != ErrorClass::Other {
        return false;
    }
    let message = error.message.to_lowercase();
    let words = ["tag", "hex", "parse", "invalid", "finalized", "unsupported", "unknown"];
    error.code == -32_602 || words.iter().any(|word| message.contains(word))
}

/// The number of blocks that the node suggests: as data, as "[0x1, 0x9]", as "range 1-9", or as the number of a
/// limit.
fn suggested(error: &RpcError, message: &str) -> Option<u64> {
    let length = |from: u64, to: u64| to.checked_sub(from)?.checked_add(1);
    if let Some((from, to)) = error.suggested {
        return length(from, to);
    }
    let hexes: Vec<u64> =
        message.split(|c: char| !c.is_ascii_alphanumeric()).filter_map(quantity).take(2).collect();
    if let [from, to] = hexes[..] {
        return length(from, to);
    }
    if let Some((_, rest)) = message.split_once("with the range ")
        && let Some((from, to)) = rest.split_once('-')
    {
        let to: String = to.chars().take_while(char::is_ascii_digit).collect();
        return length(from.trim().parse().ok()?, to.parse().ok()?);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: i64, message: &str, expected: ErrorClass) {
        let error = RpcError { code, message: message.to_owned(), suggested: None, data: None };
        assert_eq!(classify_error(&error), expected, "{code} {message}");
    }

    #[test]
    fn the_wordings_of_nodes_and_providers() {
        let too_much = |blocks| ErrorClass::TooMuch { blocks };
        check(-32_602, "exceed maximum block range: 5000", too_much(None));
        check(-32_602, "query exceeds max block range 100000", too_much(None));
        let reth = "query exceeds max results 20000, retry with the range 100-149";
        check(-32_602, reth, too_much(Some(50)));
        let alchemy = "Log response size exceeded. this block range should work: [0x1, 0xa]";
        check(-32_602, alchemy, too_much(Some(10)));
        check(-32_005, "query returned more than 10000 results", too_much(None));
        check(-32_005, "Too many logs requested. Max logs per response is 20000.", too_much(None));
        check(-32_005, "limit exceeded", too_much(None));
        check(-32_005, "daily request count exceeded, request rate limited", ErrorClass::Throttled);
        check(429, "nope", ErrorClass::Throttled);
        check(-32_000, "Too Many Requests", ErrorClass::Throttled);
        check(-32_600, "batch too large", ErrorClass::BatchTooLarge);
        check(-32_003, "response too large", ErrorClass::BatchTooLarge);
        check(-32_600, "Batch requests are not supported", ErrorClass::NoBatches);
        check(-32_601, "the method eth_x does not exist/is not available", ErrorClass::NoMethod);
        check(-32_004, "Method not supported", ErrorClass::NoMethod);
        check(4444, "whatever", ErrorClass::Pruned);
        check(-32_000, "missing trie node 1234", ErrorClass::Pruned);
        check(-39_001, "Unknown block", ErrorClass::NoBlock);
        check(-32_001, "block not found: 0x12", ErrorClass::NoBlock);
        check(-32_602, "block range extends beyond current head block", ErrorClass::NoBlock);
        check(-32_002, "request timed out", ErrorClass::Slow);
        check(-32_000, "nonce too low", ErrorClass::Other);
    }

    #[test]
    fn a_contract_failure_is_distinguished_from_a_node_failure() {
        for (code, message) in [
            (3, "execution reverted"),
            (3, "execution reverted: rate limit exceeded, too many requests"),
            (-32_000, "execution reverted: missing trie node"),
            (-32_000, "Execution reverted"),
            (-32_015, "VM execution error."),
            (-32_603, "VM Exception while processing transaction: revert timeout"),
            (-32_000, "out of gas"),
            (-32_003, "out of gas: gas required exceeds: 30000000"),
            (-32_000, "invalid opcode: INVALID"),
            (-32_000, "stack underflow (0 <=> 2)"),
            (-32_000, "invalid jump destination"),
            (-32_000, "EVM error: OpcodeNotFound"),
        ] {
            check(code, message, ErrorClass::Reverted);
        }
        for message in [
            "required historical state unavailable (reexec=128)",
            "missing trie node 12 (path ) state 0x34 is not available",
            "historical state 0x12 is not available",
            "no state found for block number 5",
            "No state available for block 0x5",
            "World State unavailable",
        ] {
            check(-32_000, message, ErrorClass::Pruned);
        }
        check(-32_000, "execution aborted (timeout = 5s)", ErrorClass::Slow);
        check(-32_000, "err: intrinsic gas too low (supplied gas 1)", ErrorClass::Other);
    }

    #[test]
    fn a_range_in_the_data_of_an_error_is_used() {
        let message = "query returned more than 10000 results".to_owned();
        let error = RpcError { code: -32_005, message, suggested: Some((5, 14)), data: None };
        assert_eq!(classify_error(&error), ErrorClass::TooMuch { blocks: Some(10) });
        let backwards = RpcError { suggested: Some((14, 5)), ..error };
        assert_eq!(classify_error(&backwards), ErrorClass::TooMuch { blocks: None });
    }

    #[test]
    fn a_young_chain_is_distinguished_from_an_unknown_tag() {
        let error = |code, message: &str| RpcError {
            code,
            message: message.to_owned(),
            suggested: None,
            data: None,
        };
        assert!(is_young(&error(-39_001, "Unknown block")));
        assert!(is_young(&error(-32_000, "finalized block not found")));
        assert!(!is_young(&error(-32_602, "invalid argument 0: hex string without 0x prefix")));
    }
}
