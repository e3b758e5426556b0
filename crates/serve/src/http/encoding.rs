//! `Content-Encoding` of requests: gzip bodies, as senders of usage and of JSON-RPC use them.
//!
//! Guarantees: a body is decompressed as it is read, so no work is done before a handler reads it; at most
//! [`STEP_BYTES`] of it are decompressed at once, and never more than the body limit is read, compressed or not. An
//! unknown encoding is a 415 that names the supported ones. Leaves to others: the limit on the decompressed size and on
//! the time ([`super::read_body`]).

use std::io::Write;
use std::sync::Arc;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes};
use flate2::write::MultiGzDecoder;
use futures::StreamExt;
use futures::stream::unfold;
use http_body_util::LengthLimitError;

use super::{ServerState, problem};

/// Maximum number of compressed bytes decompressed at once. They may expand a thousandfold.
const STEP_BYTES: usize = 1 << 10;

#[derive(Debug, thiserror::Error)]
pub(super) enum BodyEncodingError {
    #[error("the body is not gzip although its Content-Encoding says so: {0}")]
    NotGzip(std::io::Error),
    #[error("the compressed body has more than {max} bytes")]
    TooLong { max: usize },
    #[error("the body could not be received: {0}")]
    Receive(axum::Error),
}

/// Decompresses the body of a request with a `Content-Encoding`.
pub(super) async fn decompress_request(
    State(shared): State<Arc<ServerState>>,
    mut request: Request,
    next: Next,
) -> Response {
    match Encoding::of(request.headers()) {
        Encoding::Identity => {}
        Encoding::Gzip => {
            let headers = request.headers_mut();
            headers.remove(CONTENT_ENCODING);
            // It is the length of the compressed body.
            headers.remove(CONTENT_LENGTH);
            let max = shared.limits.max_body_bytes;
            let body = std::mem::take(request.body_mut());
            *request.body_mut() = gunzip_body(body, max);
        }
        Encoding::Unknown(name) => return unknown(&name),
    }
    next.run(request).await
}

pub(super) fn too_large(max: usize) -> Response {
    problem(StatusCode::PAYLOAD_TOO_LARGE, &format!("the body has more than {max} bytes"))
}

/// The response for a body that is too large, wrongly encoded or incomplete.
pub(super) fn unreadable(error: &axum::Error, max: usize) -> Response {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return too_large(max);
        }
        match error.downcast_ref::<BodyEncodingError>() {
            Some(BodyEncodingError::Receive(_)) | None => cause = error.source(),
            Some(why @ BodyEncodingError::NotGzip(_)) => {
                return problem(StatusCode::BAD_REQUEST, &why.to_string());
            }
            Some(why @ BodyEncodingError::TooLong { .. }) => {
                return problem(StatusCode::PAYLOAD_TOO_LARGE, &why.to_string());
            }
        }
    }
    problem(StatusCode::BAD_REQUEST, "the body was not received completely")
}

enum Encoding {
    Identity,
    Gzip,
    /// The value of the header.
    Unknown(String),
}

impl Encoding {
    fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(CONTENT_ENCODING).into_iter();
        let text = |value: &axum::http::HeaderValue| {
            String::from_utf8_lossy(value.as_bytes()).into_owned()
        };
        let names = values.map(text).collect::<Vec<_>>().join(",").to_ascii_lowercase();
        let applied = names.split(',').map(str::trim);
        let mut applied = applied.filter(|name| !name.is_empty() && *name != "identity");
        match (applied.next(), applied.next()) {
            (None, _) => Self::Identity,
            (Some("gzip" | "x-gzip"), None) => Self::Gzip,
            // A body that is compressed twice is not supported either.
            _ => Self::Unknown(names),
        }
    }
}

fn unknown(name: &str) -> Response {
    let name: String = name.chars().filter(|c| !c.is_control()).take(40).collect();
    let why = format!(
        "Content-Encoding {name:?} is not supported: send the body uncompressed or with gzip"
    );
    let known = [(ACCEPT_ENCODING, "gzip, identity")];
    (known, problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, &why)).into_response()
}

/// A body that is being decompressed.
struct Gunzip {
    body: BodyDataStream,
    /// Received, not yet decompressed.
    input: Bytes,
    decoder: MultiGzDecoder<Vec<u8>>,
    /// Number of compressed bytes that may still come.
    left: usize,
    max: usize,
    is_over: bool,
}

fn gunzip_body(body: Body, max: usize) -> Body {
    let gunzip = Gunzip {
        body: body.into_data_stream(),
        input: Bytes::new(),
        decoder: MultiGzDecoder::new(Vec::new()),
        left: max,
        max,
        is_over: false,
    };
    Body::from_stream(unfold(gunzip, |mut gunzip| async move {
        let piece = gunzip.next().await?;
        Some((piece, gunzip))
    }))
}

impl Gunzip {
    /// The next non-empty piece; `None` at the end or after an error.
    async fn next(&mut self) -> Option<Result<Bytes, BodyEncodingError>> {
        while !self.is_over {
            match self.step().await {
                Ok(piece) if piece.is_empty() => {}
                Ok(piece) => return Some(Ok(piece)),
                Err(error) => {
                    self.is_over = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }

    async fn step(&mut self) -> Result<Bytes, BodyEncodingError> {
        if self.input.is_empty() {
            match self.body.next().await {
                Some(received) => self.input = received.map_err(BodyEncodingError::Receive)?,
                None => {
                    self.is_over = true;
                    self.decoder.try_finish().map_err(BodyEncodingError::NotGzip)?;
                    return Ok(self.taken());
                }
            }
            let received = self.input.len();
            let left = self.left.checked_sub(received);
            self.left = left.ok_or(BodyEncodingError::TooLong { max: self.max })?;
        }
        let step = self.input.len().min(STEP_BYTES);
        // A decoder may consume less than its input.
        let taken = self.decoder.write(&self.input[..step]).map_err(BodyEncodingError::NotGzip)?;
        if taken == 0 && step > 0 {
            let why = std::io::Error::other("unexpected bytes after the end");
            return Err(BodyEncodingError::NotGzip(why));
        }
        self.input.advance(taken);
        Ok(self.taken())
    }

    fn taken(&mut self) -> Bytes {
        Bytes::from(std::mem::take(self.decoder.get_mut()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use axum::body::to_bytes;
    use flate2::Compression;
    use flate2::read::GzEncoder;

    use super::*;

    fn gzip(bytes: impl Read) -> Vec<u8> {
        let mut out = Vec::new();
        GzEncoder::new(bytes, Compression::best()).read_to_end(&mut out).expect("in memory");
        out
    }

    async fn read(compressed: Vec<u8>, max: usize) -> Result<Vec<u8>, String> {
        // In small pieces, as they come from a network.
        let pieces: Vec<_> = compressed.chunks(7).map(<[u8]>::to_vec).map(Bytes::from).collect();
        let pieces = pieces.into_iter().map(Ok::<_, std::convert::Infallible>);
        let body = gunzip_body(Body::from_stream(futures::stream::iter(pieces)), max);
        let bytes = to_bytes(body, max).await;
        bytes.map(|bytes| bytes.to_vec()).map_err(|error| logmill_io::error_chain(&error))
    }

    #[tokio::test]
    async fn a_compressed_body_is_decompressed_completely() {
        let text = b"[1,2,3]".repeat(10_000);
        assert_eq!(read(gzip(&text[..]), 1 << 20).await, Ok(text));
        assert_eq!(read(gzip(&b""[..]), 1000).await, Ok(Vec::new()));
        let mut two = gzip(&b"one "[..]);
        two.extend(gzip(&b"two"[..]));
        assert_eq!(read(two, 1000).await, Ok(b"one two".to_vec()));
    }

    #[tokio::test]
    async fn a_truncated_changed_or_uncompressed_body_is_refused() {
        let whole = gzip(&b"{\"a\":1}".repeat(50)[..]);
        let cut = whole[..whole.len() - 3].to_vec();
        let mut changed = whole.clone();
        let last = changed.len() - 6;
        changed[last] ^= 1;
        let mut longer = whole;
        longer.extend(b"garbage");
        for body in [cut, changed, longer, b"{\"a\":1}".to_vec(), vec![0x1f, 0x8b]] {
            let error = read(body, 1 << 20).await.expect_err("no gzip");
            assert!(error.contains("not gzip"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_bomb_is_cut_off_at_the_limit() {
        let bomb = gzip(std::io::repeat(b' ').take(64 << 20));
        assert!(bomb.len() < 80 << 10, "it is small: {}", bomb.len());
        let error = read(bomb, 1 << 20).await.expect_err("too large");
        assert!(error.contains("length limit exceeded"), "{error}");
        // Empty gzip members produce no output, however many there are.
        let empty = gzip(&b""[..]).repeat(100_000);
        let error = read(empty, 1 << 20).await.expect_err("too long");
        assert!(error.contains("more than 1048576 bytes"), "{error}");
    }

    #[test]
    fn encodings_are_recognized() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_ENCODING, value.parse().expect("a value"));
            }
            match Encoding::of(&headers) {
                Encoding::Identity => "identity".to_owned(),
                Encoding::Gzip => "gzip".to_owned(),
                Encoding::Unknown(name) => format!("unknown {name}"),
            }
        };
        assert_eq!(of(&[]), "identity");
        assert_eq!(of(&["identity"]), "identity");
        assert_eq!(of(&["GZIP"]), "gzip");
        assert_eq!(of(&["x-gzip, identity"]), "gzip");
        assert_eq!(of(&["br"]), "unknown br");
        assert_eq!(of(&["gzip", "gzip"]), "unknown gzip,gzip");
        assert_eq!(of(&["gzip, deflate"]), "unknown gzip, deflate");
    }
}
