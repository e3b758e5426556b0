//! The stream of live values.

use futures::StreamExt;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::engine::{Engine, on_both_engines};
use super::ground::Metered;

type Socket = WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>;

async fn connect(metered: &Metered, query: &str) -> Socket {
    let address = format!("ws://{}/meters/stream?{query}", metered.address);
    tokio_tungstenite::connect_async(address).await.expect("a WebSocket").0
}

/// The values of the day in the next message.
async fn day(socket: &mut Socket) -> Value {
    loop {
        if let Message::Text(text) = socket.next().await.expect("open").expect("a message") {
            let message: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(message["type"], "meters");
            assert_eq!(message["payload"]["customerId"], "c");
            let periods = message["payload"]["periods"].as_array().expect("periods");
            assert_eq!(periods.len(), 4);
            let daily = periods.iter().find(|period| period["period"] == "daily");
            return daily.expect("the day").clone();
        }
    }
}

async fn live_values_come_at_once_and_whenever_usage_changes(engine: Engine) {
    let metered = Metered::new(&engine).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 1})).await;
    let mut all = connect(&metered, "customerId=c").await;
    let mut one = connect(&metered, "customerId=c&eventType=test.min").await;
    let first = day(&mut all).await;
    assert_eq!(first["events"], json!({"api.calls": 1}));
    assert_eq!(first["periodKey"], "20260113");
    assert_eq!(day(&mut one).await["events"], json!({}));
    metered.send("api.calls", json!({"customerId": "other", "value": 5})).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 2})).await;
    metered.send("test.min", json!({"customerId": "c", "value": 7})).await;
    let mut last = day(&mut all).await;
    while last["events"] != json!({"api.calls": 3, "test.min": 7}) {
        last = day(&mut all).await;
    }
    assert_eq!(last["eventCounts"], json!({"api.calls": 2, "test.min": 1}));
    assert_eq!(day(&mut one).await["events"], json!({"test.min": 7}));
}

async fn a_stream_of_nothing_that_is_metered_is_refused(engine: Engine) {
    let metered = Metered::new(&engine).await;
    for path in [
        "/meters/stream",
        "/meters/stream?customerId=",
        "/meters/stream?customerId=c&eventType=x",
        "/meters/stream?customerId=c&x=1",
        "/meters/stream?customerId=c",
    ] {
        let status = metered.get(path).await.status;
        assert_eq!(status, 400, "{path}");
    }
}

on_both_engines![
    live_values_come_at_once_and_whenever_usage_changes,
    a_stream_of_nothing_that_is_metered_is_refused,
];
