//! Which stored record is not what was written.

/// A damaged record, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DamagedRecord {
    /// An event of the database.
    Event(i64),
    /// The index entry of the event with this number.
    Place(i64),
    /// A slice of the archive.
    Slice(i64),
    /// The name of a customer.
    Customer(i64),
    /// The names of a series.
    Series(i64),
}

impl DamagedRecord {
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Event(_) => "event",
            Self::Place(_) => "place",
            Self::Slice(_) => "slice",
            Self::Customer(_) => "customer",
            Self::Series(_) => "series",
        }
    }

    pub(crate) fn number(self) -> i64 {
        match self {
            Self::Event(number)
            | Self::Place(number)
            | Self::Slice(number)
            | Self::Customer(number)
            | Self::Series(number) => number,
        }
    }

    pub(crate) fn from_columns(kind: &str, number: i64) -> Option<Self> {
        match kind {
            "event" => Some(Self::Event(number)),
            "place" => Some(Self::Place(number)),
            "slice" => Some(Self::Slice(number)),
            "customer" => Some(Self::Customer(number)),
            "series" => Some(Self::Series(number)),
            _ => None,
        }
    }
}

impl std::fmt::Display for DamagedRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Event(seq) => write!(f, "event {seq}"),
            Self::Place(seq) => write!(f, "the entry of event {seq}"),
            Self::Slice(number) => write!(f, "slice {number} of the archive"),
            Self::Customer(number) => write!(f, "customer {number}"),
            Self::Series(number) => write!(f, "series {number}"),
        }
    }
}
