//! Finds the end of a JSON value in a stream of bytes.
//!
//! Guarantees: pure, linear, and without recursion. Leaves to others: whether the value is well formed.

/// Searches for the end of one object or array, piece by piece.
#[derive(Debug, Default)]
pub(super) struct JsonEnd {
    depth: u64,
    in_string: bool,
    escaped: bool,
}

impl JsonEnd {
    /// Returns the position after the value's last byte, if it is in this piece.
    pub(super) fn find(&mut self, piece: &[u8]) -> Option<usize> {
        for (at, &byte) in piece.iter().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_wherever_the_value_is_split() {
        let cases = [r#"{"a":[1,{"b":"}]\"{"}],"c":"\\"}"#, "[]", r#" [{"x":"]"}] "#];
        for text in cases {
            let whole = JsonEnd::default().find(text.as_bytes()).expect("an end");
            assert_eq!(text[..whole].trim(), text.trim());
            for cut in 0..whole {
                let mut end = JsonEnd::default();
                assert_eq!(end.find(&text.as_bytes()[..cut]), None, "{text} cut at {cut}");
                assert_eq!(end.find(&text.as_bytes()[cut..]), Some(whole - cut));
            }
        }
    }
}
