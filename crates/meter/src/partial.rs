//! stub
use logmill_io::Timestamp;
use crate::decimal::Decimal;
use crate::error::Result;
use crate::settings::{EventType, Op};
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position { pub time: Timestamp, pub received: Timestamp, pub seq: i64 }
pub struct Sample<'a> { pub at: Position, pub value: Decimal, pub unique: Option<&'a [u8]> }
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keeps { pub unique: bool, pub sketch: bool, pub weighted: bool }
impl From<&EventType> for Keeps { fn from(_: &EventType) -> Self { Self::default() } }
pub enum Added { Done, OutOfOrder }
pub struct Window { pub start: Timestamp, pub end: Timestamp, pub opening: Option<Decimal> }
pub struct Answer { pub value: Decimal, pub exact: bool }
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial { count: u64 }
impl Partial {
    pub fn new(_: Keeps) -> Self { Self { count: 0 } }
    pub fn add(&mut self, _: &Sample<'_>) -> Result<Added> { self.count += 1; Ok(Added::Done) }
    pub fn merge(&mut self, o: &Partial) -> Result<()> { self.count += o.count; Ok(()) }
    pub fn count(&self) -> u64 { self.count }
    pub fn is_empty(&self) -> bool { self.count == 0 }
    pub fn without_weighted(&self) -> Self { self.clone() }
    pub fn value(&self, _: Op, _: u16, _: Option<Window>) -> Result<Option<Answer>> { Ok(None) }
    pub fn encode(&self) -> Vec<u8> { self.count.to_be_bytes().to_vec() }
    pub fn decode(_: &[u8]) -> Result<Self> { Ok(Self { count: 0 }) }
}
