//! Requirements of browsers: preflights, response headers, and WebSocket keys without headers.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http_body_util::Full;
use hyper::HeaderMap;
use logmill_serve::http::{Keys, Origins};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::test_server::{TestServer, small};

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#;
const APP: &str = "https://app.example";

async fn server(keys: &str, origins: &str) -> TestServer {
    let (last, tip) = small();
    let keys = Keys::parse(keys).expect("keys");
    let keys = keys.with_origins(Origins::parse(origins).expect("origins"));
    TestServer::with(last, tip, |state| state.limits.keys = keys).await
}

async fn ask(server: &TestServer, method: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap) {
    let mut request = hyper::Request::builder().method(method).uri("/").header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if method == "POST" { CALL } else { "" };
    let (status, headers, _) = server.ask(request.body(Full::from(body)).expect("one")).await;
    (status, headers)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().expect("text"))
}

#[tokio::test]
async fn pages_of_allowed_origins_get_answers_and_others_do_not() {
    let server = server("", APP).await;
    let preflight = |origin: &'static str| {
        [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "content-type"),
            ("access-control-request-private-network", "true"),
            ("sec-fetch-site", "cross-site"),
        ]
    };
    let (status, headers) = ask(&server, "OPTIONS", &preflight(APP)).await;
    assert_eq!((status, text(&headers, "access-control-allow-origin")), (204, Some(APP)));
    assert!(text(&headers, "access-control-allow-methods").expect("methods").contains("POST"));
    let allowed = text(&headers, "access-control-allow-headers").expect("headers");
    assert!(
        ["authorization", "content-type", "x-apikey"].iter().all(|name| allowed.contains(name))
    );
    assert_eq!(text(&headers, "access-control-allow-private-network"), Some("true"));
    assert_eq!(text(&headers, "vary"), Some("Origin"));
    let (status, headers) = ask(&server, "OPTIONS", &preflight("https://evil.example")).await;
    assert_eq!((status, text(&headers, "access-control-allow-origin")), (403, None));
    let from = |origin: &'static str| {
        [("origin", origin), ("content-type", "application/json"), ("sec-fetch-site", "cross-site")]
    };
    let (status, headers) = ask(&server, "POST", &from(APP)).await;
    assert_eq!((status, text(&headers, "access-control-allow-origin")), (200, Some(APP)));
    let exposed = text(&headers, "access-control-expose-headers").expect("headers");
    for header in ["x-complete", "x-damaged-events", "x-next-cursor"] {
        assert!(exposed.split(", ").any(|name| name == header), "{header}: {exposed}");
    }
    let (status, headers) = ask(&server, "POST", &from("https://evil.example")).await;
    assert_eq!((status, text(&headers, "access-control-allow-origin")), (403, None));
}

#[tokio::test]
async fn a_preflight_needs_no_key_but_its_request_does() {
    let server = server("me:0123456789abcdef:read", APP).await;
    let preflight = [("origin", APP), ("access-control-request-method", "POST")];
    assert_eq!(ask(&server, "OPTIONS", &preflight).await.0, 204);
    let (status, headers) =
        ask(&server, "POST", &[("origin", APP), ("content-type", "application/json")]).await;
    assert_eq!((status, text(&headers, "access-control-allow-origin")), (401, Some(APP)));
    let with_key =
        [("origin", APP), ("content-type", "application/json"), ("x-apikey", "0123456789abcdef")];
    assert_eq!(ask(&server, "POST", &with_key).await.0, 200);
}

#[tokio::test]
async fn without_allowed_origins_there_are_no_cors_headers() {
    let server = server("", "").await;
    let preflight = [("origin", APP), ("access-control-request-method", "POST")];
    assert_eq!(ask(&server, "OPTIONS", &preflight).await.0, 405);
    let (status, headers) = ask(&server, "POST", &[("content-type", "application/json")]).await;
    assert!(status == 200 && !headers.contains_key("access-control-allow-origin"));
    assert!(!headers.contains_key("vary"));
}

#[tokio::test]
async fn a_page_passes_the_key_of_a_websocket_as_a_subprotocol() {
    let server = server("me:0123456789/+$%&!:read", "").await;
    let connect = async |protocols: &str| {
        let address = format!("ws://{}/", server.address);
        let mut request = address.into_client_request().expect("a request");
        let value = protocols.parse().expect("a value");
        request.headers_mut().insert("sec-websocket-protocol", value);
        let connected = tokio_tungstenite::connect_async(request).await;
        connected.map(|(_, response)| {
            let chosen = response.headers().get("sec-websocket-protocol").cloned();
            chosen.map(|chosen| chosen.to_str().expect("text").to_owned())
        })
    };
    let key = |secret: &str| format!("logmill.key.{}", URL_SAFE_NO_PAD.encode(secret));
    let right = key("0123456789/+$%&!");
    let chosen = connect(&format!("logmill.v1, {right}")).await.expect("a WebSocket");
    // The response does not repeat the secret.
    assert_eq!(chosen.as_deref(), Some("logmill.v1"));
    assert!(connect(&format!("logmill.v1, {}", key("0123456789abcdef"))).await.is_err());
    assert!(connect("logmill.v1").await.is_err());
}

#[tokio::test]
async fn a_page_can_open_a_websocket_only_from_an_allowed_origin() {
    let server = server("", APP).await;
    for (origin, expected) in [(APP, true), ("https://evil.example", false)] {
        let mut request =
            format!("ws://{}/", server.address).into_client_request().expect("a request");
        request.headers_mut().insert("origin", origin.parse().expect("a value"));
        let connected = tokio_tungstenite::connect_async(request).await;
        assert_eq!(connected.is_ok(), expected, "{origin}");
    }
}
