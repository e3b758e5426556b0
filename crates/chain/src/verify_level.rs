//! `VerifyLevel`: how much of a block is checked, or was.
//!
//! Guarantees: a higher level checks everything that a lower one does. Leaves to others: the checks
//! ([`mod@crate::verify`]).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyLevel {
    Off,
    /// The bloom of its logs.
    Bloom,
    /// Everything that the block hash commits to.
    Full,
}

impl fmt::Display for VerifyLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Bloom => "bloom",
            Self::Full => "full",
        })
    }
}

impl FromStr for VerifyLevel {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "off" => Ok(Self::Off),
            "bloom" => Ok(Self::Bloom),
            "full" => Ok(Self::Full),
            _ => Err(format!("{name:?} is not one of full, bloom, off")),
        }
    }
}
