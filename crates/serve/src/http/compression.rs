//! `Accept-Encoding`: responses are compressed with zstd or gzip where it is worthwhile.
//!
//! Guarantees: a streamed response stays streamed, because each piece is compressed and sent as it comes; at most
//! [`STEP_BYTES`] are compressed at once, with a small window; small responses, and those that are neither text nor
//! JSON, stay uncompressed. Leaves to others: compressed requests ([`super::encoding`]).

use std::io::{self, Write};
use std::sync::Arc;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use bytes::{Buf, Bytes};
use flate2::write::GzEncoder;
use futures::StreamExt;
use futures::stream::unfold;
use hyper::body::Body as _;

use super::ServerState;

/// Maximum number of bytes compressed at once.
const STEP_BYTES: usize = 64 << 10;
/// Fast, because each response is made for one client and sent once.
const GZIP_LEVEL: u32 = 1;
const ZSTD_LEVEL: i32 = 1;
/// Window of zstd as a power of two: 256 KiB per response in progress.
const ZSTD_WINDOW_LOG: u32 = 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Zstd,
    Gzip,
}

impl Coding {
    /// The best coding that the client accepts, if any.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let (mut zstd, mut gzip, mut any) = (None, None, None);
        let values = headers.get_all(ACCEPT_ENCODING).into_iter();
        let values = values.filter_map(|value| value.to_str().ok());
        for entry in values.flat_map(|value| value.split(',')) {
            let mut parts = entry.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default().to_ascii_lowercase();
            let weight = parts.find_map(weight).unwrap_or(WEIGHT_MAX);
            match name.as_str() {
                "zstd" => zstd = Some(weight),
                "gzip" | "x-gzip" => gzip = Some(weight),
                "*" => any = Some(weight),
                _ => {}
            }
        }
        let gzip = gzip.or(any).unwrap_or(0);
        match zstd.unwrap_or(0) {
            0 if gzip == 0 => None,
            zstd if zstd >= gzip => Some(Self::Zstd),
            _ => Some(Self::Gzip),
        }
    }

    fn name(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        })
    }
}

const WEIGHT_MAX: u32 = 1_000;

/// A weight (`q=0.5`) in thousandths; an unreadable one counts as 0.
fn weight(part: &str) -> Option<u32> {
    let text = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="))?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain("000".chars()).take(3).collect();
    let thousandths = match (whole, digits.parse::<u32>()) {
        ("0", Ok(digits)) if fraction.len() <= 3 => digits,
        ("1", Ok(0)) if fraction.len() <= 3 => WEIGHT_MAX,
        _ => 0,
    };
    Some(thousandths)
}

/// Compresses worthwhile responses for clients that accept it.
pub(super) async fn compress_response(
    State(shared): State<Arc<ServerState>>,
    request: Request,
    next: Next,
) -> Response {
    let min = shared.limits.compress_min_bytes;
    let coding = Coding::of(request.headers());
    let is_head = request.method() == Method::HEAD;
    let mut response = next.run(request).await;
    if min == 0 || is_head || !is_worth(&response, min) {
        return response;
    }
    let headers = response.headers_mut();
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    let Some(encoder) = coding.and_then(|coding| Encoder::new(coding).ok()) else {
        return response;
    };
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_ENCODING, encoder.coding().name());
    metrics::counter!("logmill_http_compressed_total").increment(1);
    response.map(|body| compress_body(body, encoder))
}

/// Whether a response has a compressible type and is large enough or of unknown size.
fn is_worth(response: &Response, min: usize) -> bool {
    let headers = response.headers();
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_text = kind.starts_with("application/json") || kind.starts_with("text/");
    // Events are sent as they happen, and a partial response must remain a part of the uncompressed representation.
    let is_live = kind.starts_with("text/event-stream");
    let is_bare = [CONTENT_ENCODING, ETAG].iter().all(|name| !headers.contains_key(name));
    let status = response.status();
    let has_body = !matches!(
        status,
        StatusCode::SWITCHING_PROTOCOLS
            | StatusCode::NO_CONTENT
            | StatusCode::NOT_MODIFIED
            | StatusCode::PARTIAL_CONTENT
    );
    let min = u64::try_from(min).unwrap_or(u64::MAX);
    let is_large = response.body().size_hint().exact().is_none_or(|bytes| bytes >= min);
    is_text && !is_live && is_bare && has_body && is_large
}

enum Encoder {
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
    Gzip(GzEncoder<Vec<u8>>),
}

impl Encoder {
    fn new(coding: Coding) -> io::Result<Self> {
        Ok(match coding {
            Coding::Gzip => {
                Self::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::new(GZIP_LEVEL)))
            }
            Coding::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.window_log(ZSTD_WINDOW_LOG)?;
                Self::Zstd(encoder)
            }
        })
    }

    fn coding(&self) -> Coding {
        match self {
            Self::Zstd(_) => Coding::Zstd,
            Self::Gzip(_) => Coding::Gzip,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Zstd(encoder) => encoder.write_all(bytes),
            Self::Gzip(encoder) => encoder.write_all(bytes),
        }
    }

    /// The bytes compressed so far, flushed so that the client can decode everything written.
    fn flushed(&mut self) -> io::Result<Bytes> {
        match self {
            Self::Zstd(encoder) => {
                encoder.flush()?;
                Ok(std::mem::take(encoder.get_mut()).into())
            }
            Self::Gzip(encoder) => {
                encoder.flush()?;
                Ok(std::mem::take(encoder.get_mut()).into())
            }
        }
    }

    fn finish(self) -> io::Result<Bytes> {
        match self {
            Self::Zstd(encoder) => encoder.finish().map(Bytes::from),
            Self::Gzip(encoder) => encoder.finish().map(Bytes::from),
        }
    }
}

/// A response that is being compressed.
struct CompressedBody {
    body: BodyDataStream,
    input: Bytes,
    /// `None` after the end.
    encoder: Option<Encoder>,
}

fn compress_body(body: Body, encoder: Encoder) -> Body {
    let state = CompressedBody {
        body: body.into_data_stream(),
        input: Bytes::new(),
        encoder: Some(encoder),
    };
    Body::from_stream(unfold(state, |mut state| async move {
        let piece = state.next().await?;
        Some((piece, state))
    }))
}

impl CompressedBody {
    async fn next(&mut self) -> Option<Result<Bytes, axum::Error>> {
        let mut encoder = self.encoder.take()?;
        if self.input.is_empty() {
            match self.body.next().await {
                Some(Ok(piece)) => self.input = piece,
                // A truncated body must not look complete, so the end marker of the encoding is not written.
                Some(Err(error)) => return Some(Err(error)),
                None => return Some(encoder.finish().map_err(axum::Error::new)),
            }
        }
        let step = self.input.len().min(STEP_BYTES);
        let outcome = encoder.write(&self.input[..step]).and_then(|()| encoder.flushed());
        self.input.advance(step);
        self.encoder = outcome.is_ok().then_some(encoder);
        Some(outcome.map_err(axum::Error::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_coding_that_a_client_accepts_is_chosen() {
        for (accepted, expected) in [
            (&[][..], None),
            (&["identity"][..], None),
            (&["br, deflate"][..], None),
            (&["gzip"][..], Some(Coding::Gzip)),
            (&["GZIP"][..], Some(Coding::Gzip)),
            (&["gzip, deflate, br, zstd"][..], Some(Coding::Zstd)),
            (&["gzip", "zstd"][..], Some(Coding::Zstd)),
            (&["gzip;q=1.0, zstd;q=0.5"][..], Some(Coding::Gzip)),
            (&["gzip;q=0.2, zstd; q=0.3"][..], Some(Coding::Zstd)),
            (&["gzip;q=0, zstd;q=0.0"][..], None),
            (&["gzip;q=0"][..], None),
            (&["*"][..], Some(Coding::Gzip)),
            (&["*;q=0"][..], None),
            (&["gzip;q=0, *"][..], None),
            (&["gzip;q=nonsense"][..], None),
            (&["gzip;q=7"][..], None),
        ] {
            let mut headers = HeaderMap::new();
            for value in accepted {
                headers.append(ACCEPT_ENCODING, value.parse().expect("a value"));
            }
            assert_eq!(Coding::of(&headers), expected, "{accepted:?}");
        }
    }

    #[tokio::test]
    async fn every_piece_can_be_decoded_as_soon_as_it_arrives() {
        for coding in [Coding::Zstd, Coding::Gzip] {
            let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, io::Error>>(4);
            let pieces = unfold(receiver, |mut receiver| async move {
                let piece = receiver.recv().await?;
                Some((piece, receiver))
            });
            let encoder = Encoder::new(coding).expect("an encoder");
            let body = compress_body(Body::from_stream(pieces), encoder);
            let mut sent = body.into_data_stream();
            let mut so_far = Vec::new();
            for piece in ["{\"a\":", "[1,2,3]", "}"] {
                sender.send(Ok(Bytes::from_static(piece.as_bytes()))).await.expect("taken");
                so_far
                    .extend_from_slice(&sent.next().await.expect("a piece").expect("it goes well"));
                let mut text = vec![0; 64];
                // The bytes received so far decompress, although the end is missing.
                let read = match coding {
                    Coding::Gzip => read_some(flate2::read::GzDecoder::new(&so_far[..]), &mut text),
                    Coding::Zstd => {
                        let decoder = zstd::stream::read::Decoder::new(&so_far[..]);
                        read_some(decoder.expect("a decoder"), &mut text)
                    }
                };
                assert!(text[..read].ends_with(piece.as_bytes()), "{coding:?} {piece}");
            }
        }
    }

    fn read_some(mut from: impl io::Read, into: &mut [u8]) -> usize {
        let mut read = 0;
        while let Ok(more) = from.read(&mut into[read..]) {
            if more == 0 {
                break;
            }
            read += more;
        }
        read
    }

    #[tokio::test]
    async fn a_truncated_answer_has_no_end_marker() {
        let broken = io::Error::other("broken");
        let pieces = futures::stream::iter([Ok(Bytes::from_static(b"abc")), Err(broken)]);
        let body =
            compress_body(Body::from_stream(pieces), Encoder::new(Coding::Gzip).expect("one"));
        let mut sent = body.into_data_stream();
        assert!(sent.next().await.expect("a piece").is_ok());
        assert!(sent.next().await.expect("the error").is_err());
        assert!(sent.next().await.is_none());
    }
}
