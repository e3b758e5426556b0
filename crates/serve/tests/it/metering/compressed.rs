//! Compressed request bodies: accepted, bounded, and rejected if they are not what their header says.

use std::io::Read;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzEncoder;
use http_body_util::Full;
use serde_json::json;

use super::engine::{Engine, on_both_engines};
use super::ground::{Answer, Metered};

fn gzip(bytes: impl Read) -> Bytes {
    let mut out = Vec::new();
    GzEncoder::new(bytes, Compression::fast()).read_to_end(&mut out).expect("in memory");
    Bytes::from(out)
}

async fn sent(metered: &Metered, path: &str, encoding: Option<&str>, body: Bytes) -> Answer {
    let mut request = hyper::Request::post(path)
        .header("host", "localhost")
        .header("content-type", "application/json");
    if let Some(encoding) = encoding {
        request = request.header("content-encoding", encoding);
    }
    metered.ask(request.body(Full::from(body)).expect("a request")).await
}

async fn usage_is_taken_compressed_with_gzip(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let event = json!({"customerId": "c", "value": 7, "id": "e1"}).to_string();
    let answer = sent(&metered, "/usage/api.calls", Some("gzip"), gzip(event.as_bytes())).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let batch = json!([
        {"eventType": "api.calls", "customerId": "c", "value": 1, "id": "e2"},
        {"eventType": "api.calls", "customerId": "c", "value": 2, "id": "e3"},
    ]);
    let batch = gzip(batch.to_string().as_bytes());
    let answer = sent(&metered, "/usagebatch", Some("GZip"), batch).await;
    assert_eq!((answer.status, &answer.body["count"]), (201, &json!(2)));
    let found = metered.found("/events?customerId=c").await;
    assert_eq!(found.as_array().expect("a list").len(), 3);
}

async fn a_compressed_body_that_is_wrong_is_told_what_is_wrong_with_it(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let event = json!({"customerId": "c", "value": 7}).to_string();
    let (plain, packed) = (Bytes::from(event.clone()), gzip(event.as_bytes()));
    let bomb = gzip(std::io::repeat(b' ').take(64 << 20));
    for (encoding, body, status, said) in [
        (None, packed.clone(), 400, "send Content-Encoding: gzip"),
        (Some("gzip"), plain.clone(), 400, "not gzip although its Content-Encoding says so"),
        (Some("gzip"), packed.slice(..packed.len() - 2), 400, "not gzip"),
        (Some("br"), plain.clone(), 415, "Content-Encoding \"br\" is not supported"),
        (Some("gzip, gzip"), packed.clone(), 415, "is not supported"),
        (Some("gzip"), bomb, 413, "the body has more than"),
        (None, Bytes::from_static(b"{\"a\":\"\xff\"}"), 400, "not UTF-8: see byte 7"),
    ] {
        let answer = sent(&metered, "/usage/api.calls", encoding, body).await;
        let error = answer.body["error"].as_str().expect("an error");
        assert!(answer.status == status && error.contains(said), "{}: {error}", answer.status);
    }
    assert_eq!(metered.found("/events").await, json!([]));
}

on_both_engines![
    usage_is_taken_compressed_with_gzip,
    a_compressed_body_that_is_wrong_is_told_what_is_wrong_with_it,
];
