//! Rows in PostgreSQL's binary COPY format, written directly: no allocation and no dynamic call per value.

/// Start of every stream: the signature, no flags, no extension.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// Rows of one COPY.
pub struct Rows(Vec<u8>);

impl Rows {
    pub fn new(bytes_expected: usize) -> Self {
        let mut bytes = Vec::with_capacity(bytes_expected);
        bytes.extend_from_slice(HEADER);
        Self(bytes)
    }

    /// Starts a row with this number of values.
    pub fn row(&mut self, values: i16) {
        self.0.extend_from_slice(&values.to_be_bytes());
    }

    /// A `bytea`.
    pub fn bytes(&mut self, value: &[u8]) {
        self.0.extend_from_slice(&i32::try_from(value.len()).unwrap_or(i32::MAX).to_be_bytes());
        self.0.extend_from_slice(value);
    }

    /// A `bigint`.
    pub fn big(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }

    /// An `int`.
    pub fn int(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    pub fn null(&mut self) {
        self.0.extend_from_slice(&(-1i32).to_be_bytes());
    }

    /// Ends and returns the stream.
    pub fn finish(mut self) -> bytes::Bytes {
        self.0.extend_from_slice(&(-1i16).to_be_bytes());
        self.0.into()
    }
}
