//! Detects request heads with both `Content-Length` and `Transfer-Encoding`, which are used to smuggle requests past
//! proxies. hyper removes the length before handlers see the request, so the raw bytes are searched.
//!
//! Guarantees: every head that arrives after the previous response is checked. One that arrives earlier (pipelined) is
//! read by its `Transfer-Encoding` alone, and hyper closes the connection after it, as RFC 9112 allows. Leaves to
//! others: parsing requests.

/// Maximum size of a head that is checked; hyper rejects larger ones.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The bytes of the next request's head received so far.
#[derive(Debug, Default)]
pub(super) struct HeadScan {
    seen: Vec<u8>,
    is_over: bool,
    is_ambiguous: bool,
}

impl HeadScan {
    /// Checks received bytes.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        if self.is_over {
            return;
        }
        let from = self.seen.len().saturating_sub(3);
        self.seen.extend_from_slice(bytes);
        let end = self.seen[from..].windows(4).position(|end| end == b"\r\n\r\n");
        if let Some(end) = end {
            self.is_ambiguous = is_ambiguous(&self.seen[..from + end]);
        }
        if end.is_some() || self.seen.len() > HEAD_BYTES_MAX {
            self.is_over = true;
            self.seen = Vec::new();
        }
    }

    /// Whether the last complete head has both headers.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// Starts over for the next head.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }
}

fn is_ambiguous(head: &[u8]) -> bool {
    let has = |name: &[u8]| {
        head.split(|byte| *byte == b'\n').skip(1).any(|line| {
            let colon = line.iter().position(|byte| *byte == b':');
            colon.is_some_and(|colon| line[..colon].trim_ascii().eq_ignore_ascii_case(name))
        })
    };
    has(b"content-length") && has(b"transfer-encoding")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_with_two_lengths_is_found_in_any_chunking() {
        for (head, expected) in [
            ("POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", true),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nA: b\r\nCONTENT-LENGTH:5", true),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: content-length: 5", false),
            ("POST / HTTP/1.1\r\nContent-Length: 5", false),
            ("POST /content-length:transfer-encoding: HTTP/1.1\r\nHost: x", false),
            ("GET / HTTP/1.1", false),
        ] {
            let sent = format!("{head}\r\n\r\nContent-Length: 9\r\nTransfer-Encoding: x\r\n\r\n");
            for step in [1, 2, 3, 5, 7, sent.len()] {
                let mut scan = HeadScan::default();
                sent.as_bytes().chunks(step).for_each(|bytes| scan.take(bytes));
                assert_eq!(scan.is_ambiguous(), expected, "{head} in steps of {step}");
                assert!(scan.seen.is_empty(), "nothing is held after the end");
                scan.restart();
                assert!(!scan.is_ambiguous());
            }
        }
        let mut endless = HeadScan::default();
        (0..200).for_each(|_| endless.take(&[b'x'; 1_000]));
        assert!(endless.seen.is_empty(), "nor of one without an end");
    }
}
