//! A simulated node behind a socket.

use logmill_chain::sim::rpc::NodeFaults;
use logmill_chain::sim::{Shape, SimChain};
use logmill_sim::node::SimNodeServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Status line and body of an answer.
async fn post(server: &SimNodeServer, body: &str) -> (String, String) {
    let mut socket = TcpStream::connect(server.address()).await.expect("it listens");
    let length = body.len();
    let request = format!(
        "POST / HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

#[tokio::test]
async fn a_node_answers_over_http_and_refuses_by_its_script() {
    let chain = SimChain::new(3, Shape::sparse());
    chain.grow(16);
    let server = SimNodeServer::start(&chain);
    let request = r#"[{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber","params":[]}]"#;
    let (status, body) = post(&server, request).await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert_eq!(body, r#"[{"id":1,"jsonrpc":"2.0","result":"0x10"}]"#);
    server.node().set_faults(NodeFaults { too_many_every: 1, ..NodeFaults::default() });
    let (status, body) = post(&server, request).await;
    assert_eq!((status.as_str(), body.as_str()), ("HTTP/1.1 429 Too Many Requests", ""));
    assert_eq!(server.node().requests(), 2);
}
