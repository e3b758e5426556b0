//! The stored form of [`Partial`], byte by byte.
//!
//! `version, flags` and, if there are events, `count, sum, min, max, first, last, [unique], [sketch], [area]`. Numbers
//! are varints (seven bits a byte, lowest first; signed ones zigzag), decimals are those of [`Decimal::encode`]. A
//! position is its time, then how much later it was received, then its `seq`. A unique set is its length plus one and
//! the sorted hashes, 8 bytes each, or a zero and the registers, four in three bytes. A sketch is the number of bins,
//! then for each the difference to the bin before and its count.
//!
//! Guarantees: each partial has one encoding; other bytes are refused without a panic, and decoding uses at most a few
//! times their length in memory. Leaves to others: checksums.

use logmill_io::Timestamp;

use super::sketch::{BINS_MAX, Sketch, is_bin};
use super::unique::{REGISTER_MAX, REGISTERS, UNIQUE_EXACT_MAX, Unique};
use super::{Facts, OptionalParts, Partial, Position};
use crate::decimal::Decimal;
use crate::error::{Error, Result};

const VERSION: u8 = 1;
const FILLED: u8 = 1;
const UNIQUE: u8 = 1 << 1;
const SKETCH: u8 = 1 << 2;
const WEIGHTED: u8 = 1 << 3;

/// Length of the prefix of a stored partial that contains its number of events.
pub(crate) const HEAD_BYTES: usize = 12;

impl Partial {
    /// The number of events, from the first [`HEAD_BYTES`] of the output of [`Partial::encode`].
    pub(crate) fn count_of_head(head: &[u8]) -> Result<u64> {
        match head {
            [VERSION, flags, ..] if flags & FILLED == 0 => Ok(0),
            [VERSION, _, rest @ ..] => take_number(&mut &*rest),
            _ => Err(Error::corrupt("a partial has an unknown version")),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = flag(self.facts.is_some(), FILLED)
            | flag(self.keeps.unique, UNIQUE)
            | flag(self.keeps.sketch, SKETCH)
            | flag(self.keeps.weighted, WEIGHTED);
        let mut to = vec![VERSION, flags];
        if let Some(facts) = &self.facts {
            put_facts(&mut to, facts);
        }
        to
    }

    /// Decodes the output of [`Partial::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let [VERSION, flags, rest @ ..] = bytes else {
            return Err(Error::corrupt("a partial has an unknown version"));
        };
        let known = FILLED | UNIQUE | SKETCH | WEIGHTED;
        let keeps = OptionalParts {
            unique: flags & UNIQUE != 0,
            sketch: flags & SKETCH != 0,
            weighted: flags & WEIGHTED != 0,
        };
        let mut from = rest;
        let facts = match flags & FILLED {
            0 => None,
            _ => Some(take_facts(&mut from, keeps)?),
        };
        if flags & !known != 0 || !from.is_empty() {
            return Err(Error::corrupt("a partial has trailing bytes or unknown flags"));
        }
        if !facts.as_ref().is_none_or(Facts::agree) {
            return Err(Error::corrupt("a partial is inconsistent"));
        }
        Ok(Self { keeps, facts })
    }
}

impl Facts {
    /// Whether the decoded facts are consistent.
    fn agree(&self) -> bool {
        let between = |value: Decimal| self.min <= value && value <= self.max;
        let sketched: Option<u64> = match &self.sketch {
            Some(sketch) => sketch.bins.values().try_fold(0_u64, |sum, n| sum.checked_add(*n)),
            None => Some(self.count),
        };
        self.count > 0
            && between(self.first.1)
            && between(self.last.1)
            && self.first <= self.last
            && sketched == Some(self.count)
    }
}

fn put_facts(to: &mut Vec<u8>, facts: &Facts) {
    put_number(to, facts.count);
    for value in [&facts.sum, &facts.min, &facts.max] {
        value.encode(to);
    }
    for (at, value) in [&facts.first, &facts.last] {
        put_signed(to, at.time.millis());
        put_signed(to, at.received.millis().wrapping_sub(at.time.millis()));
        put_signed(to, at.seq);
        value.encode(to);
    }
    if let Some(unique) = &facts.unique {
        put_unique(to, unique);
    }
    if let Some(sketch) = &facts.sketch {
        put_sketch(to, sketch);
    }
    if let Some(area) = &facts.area {
        area.encode(to);
    }
}

fn take_facts(from: &mut &[u8], keeps: OptionalParts) -> Result<Facts> {
    Ok(Facts {
        count: take_number(from)?,
        sum: Decimal::decode(from)?,
        min: Decimal::decode(from)?,
        max: Decimal::decode(from)?,
        first: take_event(from)?,
        last: take_event(from)?,
        unique: if keeps.unique { Some(take_unique(from)?) } else { None },
        sketch: if keeps.sketch { Some(take_sketch(from)?) } else { None },
        area: if keeps.weighted { Some(Decimal::decode(from)?) } else { None },
    })
}

fn take_event(from: &mut &[u8]) -> Result<(Position, Decimal)> {
    let time = take_signed(from)?;
    let received = time.wrapping_add(take_signed(from)?);
    let seq = take_signed(from)?;
    let at = Position { time: Timestamp(time), received: Timestamp(received), seq };
    Ok((at, Decimal::decode(from)?))
}

fn put_unique(to: &mut Vec<u8>, unique: &Unique) {
    match unique {
        Unique::Few(hashes) => {
            put_length(to, hashes.len() + 1);
            hashes.iter().for_each(|hash| to.extend_from_slice(&hash.to_be_bytes()));
        }
        Unique::Many(registers) => {
            put_length(to, 0);
            for four in registers.chunks_exact(4) {
                let packed = four.iter().fold(0_u32, |packed, one| (packed << 6) | u32::from(*one));
                to.extend_from_slice(&packed.to_be_bytes()[1..]);
            }
        }
    }
}

fn take_unique(from: &mut &[u8]) -> Result<Unique> {
    let wrong = || Error::corrupt("a partial has an invalid unique set");
    let length = take_length(from, UNIQUE_EXACT_MAX + 1)?;
    let Some(length) = length.checked_sub(1) else {
        let mut registers = Vec::with_capacity(REGISTERS);
        for three in take(from, REGISTERS / 4 * 3)?.chunks_exact(3) {
            let packed = three.iter().fold(0_u32, |packed, byte| (packed << 8) | u32::from(*byte));
            for shift in [18, 12, 6, 0] {
                registers.push(((packed >> shift) & 0x3f).to_le_bytes()[0]);
            }
        }
        let valid = registers.iter().all(|&register| register <= REGISTER_MAX);
        return if valid { Ok(Unique::Many(registers.into())) } else { Err(wrong()) };
    };
    let (hashes, _) = take(from, length * 8)?.as_chunks::<8>();
    let hashes: Vec<_> = hashes.iter().map(|hash| u64::from_be_bytes(*hash)).collect();
    if !hashes.is_sorted_by(|one, next| one < next) {
        return Err(wrong());
    }
    Ok(Unique::Few(hashes.into_iter().collect()))
}

fn put_sketch(to: &mut Vec<u8>, sketch: &Sketch) {
    put_length(to, sketch.bins.len());
    let mut before = 0_i64;
    for (&bin, &number) in &sketch.bins {
        put_signed(to, i64::from(bin) - before);
        put_number(to, number);
        before = i64::from(bin);
    }
}

fn take_sketch(from: &mut &[u8]) -> Result<Sketch> {
    let wrong = || Error::corrupt("a partial has an invalid sketch");
    let length = take_length(from, BINS_MAX)?;
    let mut sketch = Sketch::default();
    let mut before = 0_i64;
    for at in 0..length {
        let step = take_signed(from)?;
        if at > 0 && step <= 0 {
            return Err(wrong());
        }
        before = before.checked_add(step).ok_or_else(wrong)?;
        let bin = i32::try_from(before).ok().filter(|&bin| is_bin(bin)).ok_or_else(wrong)?;
        let number = take_number(from)?;
        if number == 0 {
            return Err(wrong());
        }
        sketch.bins.insert(bin, number);
    }
    Ok(sketch)
}

fn put_length(to: &mut Vec<u8>, length: usize) {
    put_number(to, u64::try_from(length).unwrap_or(u64::MAX));
}

fn take_length(from: &mut &[u8], most: usize) -> Result<usize> {
    let length = usize::try_from(take_number(from)?).ok().filter(|&length| length <= most);
    length.ok_or_else(|| Error::corrupt("a partial has an invalid length"))
}

fn take<'a>(from: &mut &'a [u8], length: usize) -> Result<&'a [u8]> {
    let parts = from.split_at_checked(length);
    let (taken, rest) = parts.ok_or_else(|| Error::corrupt("a partial is truncated"))?;
    *from = rest;
    Ok(taken)
}

fn put_number(to: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        to.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    to.push(number.to_le_bytes()[0]);
}

fn take_number(from: &mut &[u8]) -> Result<u64> {
    let mut number = 0_u64;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = take(from, 1)?[0];
        let bits = u64::from(byte & 0x7f);
        let placed = bits << shift;
        // Refuses bits that do not fit, and zeros that a shorter encoding would leave out.
        if placed >> shift != bits || (byte == 0 && shift > 0) {
            break;
        }
        number |= placed;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Error::corrupt("a partial has an invalid number"))
}

fn put_signed(to: &mut Vec<u8>, number: i64) {
    put_number(to, (number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned());
}

fn take_signed(from: &mut &[u8]) -> Result<i64> {
    let number = take_number(from)?;
    Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
}
