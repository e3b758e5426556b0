//! The usage that is sent: events are derived from their numbers, so that any of them can be sent again unchanged.

use std::fmt::Write as _;

/// The event types, each a sum.
pub const TYPES: [&str; 5] = ["api.calls", "storage.bytes", "tokens.in", "tokens.out", "seats"];

/// How usage is distributed.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub customers: u64,
    pub duplicates_percent: u64,
    /// Start and length of the time over which events are spread.
    pub start_ms: u64,
    pub length_ms: u64,
    /// Whether events happen when they are sent, instead of over that time.
    pub live: bool,
}

impl Usage {
    /// The number of the event at this position of the stream: sometimes one that was sent before.
    fn number(&self, place: u64) -> u64 {
        let again = place >= 1_000 && mixed(place) % 100 < self.duplicates_percent;
        if again { place - 1 - mixed(place ^ 7) % 900 } else { place }
    }

    /// Number of distinct events in a range of positions. A repetition repeats one of the previous 900 positions,
    /// which may be a repetition itself: then its own number was never sent, and is sent here for the first time.
    pub fn different(&self, places: std::ops::Range<u64>) -> u64 {
        let mut numbers: Vec<u64> = places.map(|place| self.number(place)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.len() as u64
    }

    /// Appends the JSON of the event at a position.
    pub fn write(&self, place: u64, out: &mut String) {
        let number = self.number(place);
        let mix = mixed(number);
        let event_type = TYPES[(mix % 5) as usize];
        self.write_body(number, Some(event_type), out);
    }

    /// Returns the type of the event at a position, and appends its JSON without the type.
    pub fn single(&self, place: u64, out: &mut String) -> &'static str {
        let number = self.number(place);
        self.write_body(number, None, out);
        TYPES[(mixed(number) % 5) as usize]
    }

    fn write_body(&self, number: u64, event_type: Option<&str>, out: &mut String) {
        let mix = mixed(number);
        let customer = (mix >> 8) % self.customers;
        let time = self.start_ms + (mix >> 16) % self.length_ms;
        out.push('{');
        if let Some(event_type) = event_type {
            let _ = write!(out, r#""eventType":"{event_type}","#);
        }
        let _ = write!(
            out,
            r#""customerId":"cust_{customer}","value":{},"id":"evt-{number}""#,
            mix % 1_000
        );
        if !self.live {
            let _ = write!(out, r#","timestamp":{time}"#);
        }
        out.push('}');
    }
}

/// Pseudorandom mix of a number (SplitMix64).
pub fn mixed(number: u64) -> u64 {
    let mut mix = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix = (mix ^ (mix >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix = (mix ^ (mix >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mix ^ (mix >> 31)
}
