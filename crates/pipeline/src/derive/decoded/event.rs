//! `EventDecoder`: decodes the logs of one event, given by its Solidity signature.
//!
//! Guarantees: a log yields values only if its topic and encoding are those of the event, as a Solidity compiler would
//! have encoded it; the size of the values is bounded. Leaves to others: which contract emitted the log, and what the
//! values mean.

use std::collections::BTreeMap;

use alloy_dyn_abi::{DecodedEvent, DynSolEvent, DynSolType, DynSolValue, Specifier};
use alloy_json_abi::Event;
use alloy_primitives::B256;
use logmill_chain::Log;

use crate::error::{Error, Result};

pub(crate) const SIGNATURE_BYTES_MAX: usize = 2_048;
/// Maximum number of parameters; Solidity itself can hardly emit more than seventeen.
const PARAMETERS_MAX: usize = 32;
/// Maximum nesting of dynamic arrays: the decoded size of `n` bytes grows with that power of `n`.
const DYNAMIC_DEPTH_MAX: usize = 2;
/// Maximum size of a log with nested dynamic arrays.
const NESTED_BYTES_MAX: usize = 16 * 1024;

/// An event whose logs are decoded.
#[derive(Debug)]
pub(crate) struct EventDecoder {
    topic: B256,
    /// As declared.
    event: Event,
    /// Its types.
    types: DynSolEvent,
    /// Larger logs are ignored.
    bytes_max: usize,
}

/// A parameter of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter<'a> {
    pub(crate) name: &'a str,
    pub(crate) ty: &'a DynSolType,
    pub(crate) indexed: bool,
}

impl EventDecoder {
    /// Parses a signature, such as `event Transfer(address indexed from, address to, uint256 value)`.
    pub(crate) fn new(signature: &str) -> Result<Self> {
        let event = parse_signature(signature)?;
        let types: DynSolEvent =
            event.resolve().map_err(|error| unreadable(signature, &error.to_string()))?;
        let all = types.indexed().iter().chain(types.body());
        let depth = all.map(dynamic_depth).collect::<Result<Vec<usize>>>()?;
        let depth = depth.into_iter().max().unwrap_or(0);
        if depth > DYNAMIC_DEPTH_MAX {
            return Err(invalid(format!(
                "arrays are nested too deep: at most {DYNAMIC_DEPTH_MAX} levels"
            )));
        }
        let bytes_max = if depth > 1 { NESTED_BYTES_MAX } else { usize::MAX };
        Ok(Self { topic: event.selector(), event, types, bytes_max })
    }

    pub(crate) fn topic(&self) -> B256 {
        self.topic
    }

    pub(crate) fn name(&self) -> &str {
        &self.event.name
    }

    /// The signature with names, and with which parameters are indexed.
    pub(crate) fn full_signature(&self) -> String {
        self.event.full_signature()
    }

    /// In the order of the signature.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = Parameter<'_>> {
        let (mut indexed, mut body) = (self.types.indexed().iter(), self.types.body().iter());
        self.event.inputs.iter().filter_map(move |input| {
            let ty = if input.indexed { indexed.next() } else { body.next() };
            Some(Parameter { name: &input.name, ty: ty?, indexed: input.indexed })
        })
    }

    /// Whether the event has a parameter with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.event.inputs.iter().any(|input| input.name == name)
    }

    /// Whether a log has the event's topic and is not too large.
    pub(crate) fn accepts(&self, log: &Log) -> bool {
        log.topics.first() == Some(&self.topic) && log.data.len() <= self.bytes_max
    }

    /// The values of a log, in the order of the parameters; none if it is another event or wrongly encoded.
    pub(crate) fn decode(&self, log: &Log) -> Option<Vec<DynSolValue>> {
        if !self.accepts(log) {
            return None;
        }
        let values = decode(&self.types, log)?;
        let (mut indexed, mut body) = (values.indexed.into_iter(), values.body.into_iter());
        let ordered = self.event.inputs.iter();
        let ordered = ordered.map(|input| if input.indexed { indexed.next() } else { body.next() });
        Some(ordered.flatten().collect())
    }

    /// [`Self::decode`], by parameter name.
    pub(crate) fn decode_named(&self, log: &Log) -> Option<BTreeMap<&str, DynSolValue>> {
        let names = self.event.inputs.iter().map(|input| input.name.as_str());
        Some(names.zip(self.decode(log)?).collect())
    }
}

fn parse_signature(signature: &str) -> Result<Event> {
    let text = signature.trim().trim_end_matches(';');
    if text.len() > SIGNATURE_BYTES_MAX {
        return Err(invalid(format!("a signature may have at most {SIGNATURE_BYTES_MAX} bytes")));
    }
    let event = Event::parse(&without_names(text));
    let event = event.map_err(|error| unreadable(text, &error.to_string()))?;
    let indexed = event.inputs.iter().filter(|input| input.indexed).count();
    if event.anonymous {
        return Err(invalid("an anonymous event cannot be found by its topic".to_owned()));
    }
    if indexed > 3 || event.inputs.len() > PARAMETERS_MAX {
        let what =
            format!("an event may have at most {PARAMETERS_MAX} parameters, 3 of them indexed");
        return Err(invalid(what));
    }
    Ok(event)
}

/// Removes the names of tuple components, which the parser does not accept and no column needs:
/// `tuple(uint256 a, address b)[] list` becomes `(uint256,address)[] list`.
fn without_names(signature: &str) -> String {
    let mut plain = String::new();
    // For each open parenthesis, whether the type of the current component has ended.
    let mut open: Vec<bool> = Vec::new();
    for letter in signature.replace("tuple(", "(").chars() {
        let inside = open.len() > 1;
        match letter {
            '(' => open.push(false),
            ')' => drop(open.pop()),
            ',' => open.last_mut().into_iter().for_each(|ended| *ended = false),
            _ if inside && letter.is_whitespace() => {
                let begun = !plain.ends_with(['(', ',']);
                open.last_mut().into_iter().for_each(|ended| *ended |= begun);
                continue;
            }
            _ if inside && open.last() == Some(&true) => continue,
            _ => {}
        }
        plain.push(letter);
    }
    plain
}

/// Nesting of dynamic arrays; refuses types without a size.
fn dynamic_depth(ty: &DynSolType) -> Result<usize> {
    Ok(match ty {
        DynSolType::Array(of) => dynamic_depth(of)? + 1,
        DynSolType::FixedArray(_, 0) => {
            return Err(invalid("an array type has no elements".to_owned()));
        }
        DynSolType::FixedArray(of, _) => dynamic_depth(of)?,
        DynSolType::Tuple(parts) if parts.is_empty() => {
            return Err(invalid("a tuple type has no components".to_owned()));
        }
        DynSolType::Tuple(parts) => {
            let depths = parts.iter().map(dynamic_depth).collect::<Result<Vec<usize>>>()?;
            depths.into_iter().max().unwrap_or(0)
        }
        _ => 0,
    })
}

/// The values of a log; none if it is not encoded as the event.
fn decode(event: &DynSolEvent, log: &Log) -> Option<DecodedEvent> {
    let decoded = event.decode_log_parts(log.topics.iter().copied(), &log.data).ok()?;
    let topics = log.topics.iter().skip(1).zip(&decoded.indexed);
    let whole =
        topics.zip(event.indexed()).all(|((topic, value), ty)| is_word_of(value, ty, topic));
    let body = DynSolValue::Tuple(decoded.body.clone());
    // Static values have only one encoding; comparing it catches what the decoder ignores.
    let exact = body.is_dynamic() || body.abi_encode_sequence().is_some_and(|b| log.data == b);
    let fitting = decoded.indexed.iter().chain(&decoded.body).all(fits);
    (whole && exact && fitting).then_some(decoded)
}

/// Whether a value fits its type: the decoder takes the whole word.
fn fits(value: &DynSolValue) -> bool {
    match value {
        DynSolValue::Uint(number, bits) => number.bit_len() <= *bits,
        DynSolValue::Int(number, bits) => usize::try_from(number.bits()).is_ok_and(|n| n <= *bits),
        DynSolValue::FixedBytes(word, size) => word.iter().skip(*size).all(|byte| *byte == 0),
        DynSolValue::Array(parts) | DynSolValue::FixedArray(parts) | DynSolValue::Tuple(parts) => {
            parts.iter().all(fits)
        }
        _ => true,
    }
}

/// Whether a topic is the encoded value; for types that are hashed, any topic is accepted.
fn is_word_of(value: &DynSolValue, ty: &DynSolType, topic: &B256) -> bool {
    match ty {
        DynSolType::Bytes
        | DynSolType::String
        | DynSolType::Array(_)
        | DynSolType::FixedArray(..)
        | DynSolType::Tuple(_) => true,
        _ => value.as_word() == Some(*topic),
    }
}

fn invalid(what: String) -> Error {
    Error::Invalid { what }
}

fn unreadable(signature: &str, why: &str) -> Error {
    let why = why.lines().map(str::trim).rfind(|line| !line.is_empty());
    let why = why.unwrap_or_default();
    invalid(format!(
        "{signature:?} is not an event signature such as `event Transfer(address indexed from, address indexed to, \
         uint256 value)`: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuple_components_lose_their_names() {
        for (signature, expected) in [
            ("event A(uint8 indexed a, address b)", "event A(uint8 indexed a, address b)"),
            ("event A((uint8 a, bytes  b)[] t, bool c)", "event A((uint8,bytes)[] t, bool c)"),
            (
                "event A(tuple( (uint8 a)[2] x , b y) indexed t)",
                "event A(((uint8)[2],b) indexed t)",
            ),
            (")) ((((", ")) (((("),
        ] {
            assert_eq!(without_names(signature), expected);
        }
    }
}
