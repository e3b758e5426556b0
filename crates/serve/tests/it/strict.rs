//! Parameters that nodes reject are rejected with −32602 and their position. The cases are rules that geth, Besu and
//! Nethermind follow.

use logmill_serve::rpc::methods::METHODS;
use serde_json::{Value, json};

use super::test_server::{TestServer, small};

#[tokio::test]
async fn parameters_that_nodes_reject_are_rejected_with_their_position() {
    let (last, tip) = small();
    let hash = last[3].at.hash.to_string();
    let server = TestServer::of(last, tip).await;
    let (bare, long, short) = (&hash[2..], format!("{hash}00"), &hash[..40]);
    let prefix = "hex string without 0x prefix";
    let zeros = "hex number with leading zero digits";
    for (method, params, why) in [
        ("eth_getBlockByNumber", json!(["", false]), "0: empty hex string".to_owned()),
        ("eth_getBlockByNumber", json!(["3", false]), format!("0: {prefix}")),
        ("eth_getBlockByNumber", json!(["0x03", false]), format!("0: {zeros}")),
        ("eth_getBlockByNumber", json!(["0x", false]), "0: hex string \"0x\"".to_owned()),
        ("eth_getBlockByNumber", json!(["0xg", false]), "0: invalid hex string".to_owned()),
        ("eth_getBlockByNumber", json!(["Latest", false]), format!("0: {prefix}")),
        ("eth_getBlockByNumber", json!([" latest", false]), format!("0: {prefix}")),
        ("eth_getBlockByNumber", json!([3, false]), "0: invalid type: integer `3`".to_owned()),
        ("eth_getBlockByNumber", json!(["0x3", "true"]), "1: invalid type: string".to_owned()),
        ("eth_getBlockByHash", json!([bare, false]), format!("0: {prefix}")),
        ("eth_getBlockByHash", json!(["", false]), "0: empty hex string".to_owned()),
        (
            "eth_getBlockByHash",
            json!([long, false]),
            "0: hex string has length 66, want 64".to_owned(),
        ),
        (
            "eth_getTransactionByHash",
            json!([short]),
            "0: hex string has length 38, want 64".to_owned(),
        ),
        ("eth_getTransactionReceipt", json!([bare]), format!("0: {prefix}")),
        ("eth_getBlockReceipts", json!([bare]), format!("0: {prefix}")),
        ("eth_getBlockReceipts", json!([["0x1"]]), "0: expected an object".to_owned()),
        ("eth_getBlockReceipts", json!([{}]), "0: either blockNumber or".to_owned()),
        ("eth_getTransactionByBlockNumberAndIndex", json!(["0x1", "0x00"]), format!("1: {zeros}")),
        ("eth_getTransactionByBlockHashAndIndex", json!([hash, "1"]), format!("1: {prefix}")),
        ("eth_getUncleByBlockNumberAndIndex", json!(["0x1", ""]), "1: empty hex string".to_owned()),
        ("debug_getRawBlock", json!(["2"]), format!("0: {prefix}")),
        ("debug_getRawHeader", json!(["2"]), format!("0: {prefix}")),
        ("debug_getRawReceipts", json!(["2"]), format!("0: {prefix}")),
        ("debug_getRawTransaction", json!([bare]), format!("0: {prefix}")),
        ("web3_sha3", json!(["68"]), format!("0: {prefix}")),
        ("web3_sha3", json!(["0x1"]), "0: hex string of odd length".to_owned()),
        ("eth_feeHistory", json!(["0x01", "latest"]), format!("0: {zeros}")),
        ("eth_feeHistory", json!(["0x1", ""]), "1: empty hex string".to_owned()),
        ("eth_feeHistory", json!(["0x1", "latest", ["1"]]), "2: invalid type".to_owned()),
        ("eth_getLogs", json!([{"address": [null]}]), "0: non-string address at".to_owned()),
        ("eth_getLogs", json!([{"address": "0x12"}]), "0: invalid address: hex string".to_owned()),
        ("eth_getLogs", json!([{"fromBlock": ""}]), "0: fromBlock: empty hex string".to_owned()),
        ("eth_getLogs", json!([["0x1", "0x2"]]), "0: expected an object".to_owned()),
        ("eth_newFilter", json!([{"address": [null]}]), "0: non-string address at".to_owned()),
        ("logmill_getLogs", json!([{}, ["5", 3]]), "1: expected an object".to_owned()),
        ("logmill_getLogs", json!([{}, {"limit": "07"}]), format!("1: limit: {prefix}")),
        ("logmill_getLogs", json!([{}, {"size": 7}]), "1: unknown field \"size\"".to_owned()),
    ] {
        let (code, message, _) = server.refused(method, params.clone()).await;
        let expected = format!("invalid argument {why}");
        assert!(
            code == -32_602 && message.starts_with(&expected),
            "{method} {params}: {code} {message}"
        );
    }
}

#[tokio::test]
async fn every_method_of_the_table_is_answered_and_accepts_only_the_listed_parameters() {
    let (last, tip) = small();
    let server = TestServer::of(last, tip).await;
    let document = server.call("rpc.discover", json!([])).await;
    let described = document["methods"].as_array().expect("methods");
    assert_eq!(described.len(), METHODS.len());
    for (method, described) in METHODS.iter().zip(described) {
        assert_eq!(described["name"], method.name);
        let answer = server.answer(method.name, json!([])).await;
        assert_ne!(answer["error"]["code"], -32_601, "{}", method.name);
        let required = described["params"].as_array().expect("params");
        let required = required.iter().any(|param| param["required"] == true);
        let is_missing = answer["error"]["message"]
            .as_str()
            .is_some_and(|why| why.starts_with("missing value for required argument 0"));
        let needs_socket = matches!(method.name, "eth_subscribe" | "eth_unsubscribe");
        assert!(is_missing == required || needs_socket, "{}: {answer}", method.name);
        let many: Vec<Value> = vec![json!("0x1"); method.params.len() + 1];
        let (code, message, _) = server.refused(method.name, json!(many)).await;
        let expected = format!("too many arguments, want at most {}", method.params.len());
        assert_eq!((code, message), (-32_602, expected), "{}", method.name);
    }
    let modules = server.call("rpc_modules", json!([])).await;
    let modules: Vec<&String> = modules.as_object().expect("an object").keys().collect();
    assert_eq!(modules, ["debug", "eth", "logmill", "net", "rpc", "web3"]);
}
