//! `Claim`: what the tables claim about an item or a holder, the call that checks it, and how the answer compares.
//!
//! Guarantees: a claim agrees only with an answer that is exactly equal. Leaves to others: asking
//! ([`super::Reconciler`]), and choosing claims ([`super::sample`]).

use alloy_primitives::{Address, B256, U256};
use logmill_io::Amount;

use crate::derive::rows::amount;
use crate::observe::{AnswerStatus, Call, Question, StateAnswer, answer};

pub(super) const OWNER_OF: [u8; 4] = [0x63, 0x52, 0x21, 0x1e];
pub(super) const BALANCE_OF: [u8; 4] = [0x70, 0xa0, 0x82, 0x31];
pub(super) const BALANCE_OF_ITEM: [u8; 4] = [0x00, 0xfd, 0xd5, 0x8e];

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The contract answers the same.
    Agrees,
    /// The contract answers something else.
    Differs,
    /// The contract reverts, but the table has a value.
    Reverts,
    /// The contract's answer cannot be compared.
    Unclear,
    /// No node still has the state of the block, so nothing was compared.
    NoState,
}

impl Verdict {
    pub const ALL: [Self; 5] =
        [Self::Agrees, Self::Differs, Self::Reverts, Self::Unclear, Self::NoState];

    /// The stored name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Differs => "differs",
            Self::Reverts => "reverts",
            Self::Unclear => "unclear",
            Self::NoState => "no_state",
        }
    }
}

/// A statement of the tables that a contract can confirm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The owner of an item.
    Owner { contract: Address, id: U256, owner: Address },
    /// The change of an owner's quantity of an item.
    Quantity { contract: Address, id: U256, owner: Address, change: Amount },
    /// The change of an owner's token balance.
    Balance { token: Address, owner: Address, change: Amount },
}

impl Claim {
    pub(super) fn question(&self) -> Question {
        match self {
            Self::Owner { contract, id, .. } => {
                Question::new("nft_owner", &[contract.as_slice(), B256::from(*id).as_slice()])
            }
            Self::Quantity { contract, id, owner, .. } => {
                let id = B256::from(*id);
                let parts = [contract.as_slice(), id.as_slice(), owner.as_slice()];
                Question::new("nft_balance", &parts)
            }
            Self::Balance { token, owner, .. } => {
                Question::new("ft_balance", &[token.as_slice(), owner.as_slice()])
            }
        }
    }

    pub(super) fn call(&self) -> Call {
        match self {
            Self::Owner { contract, id, .. } => Call::new(*contract, OWNER_OF, &[B256::from(*id)]),
            Self::Quantity { contract, id, owner, .. } => {
                let words = [owner.into_word(), B256::from(*id)];
                Call::new(*contract, BALANCE_OF_ITEM, &words)
            }
            Self::Balance { token, owner, .. } => {
                Call::new(*token, BALANCE_OF, &[owner.into_word()])
            }
        }
    }

    /// Whether it is a change, which needs the earlier value to compare.
    pub(super) fn is_change(&self) -> bool {
        !matches!(self, Self::Owner { .. })
    }

    /// The expected answer. `before` is the contract's answer from before the counted blocks; without one, the blocks
    /// were counted from the first on. None if `before` is not a number.
    pub(super) fn expected(&self, before: Option<&StateAnswer>) -> Option<String> {
        let change = match self {
            Self::Owner { owner, .. } => return Some(format!("{owner:#x}")),
            Self::Quantity { change, .. } | Self::Balance { change, .. } => *change,
        };
        let before = match before.map(|before| (before.status, &before.value)) {
            // An empty answer means that the contract did not exist yet, so all balances were zero.
            None | Some((AnswerStatus::Empty, _)) => Amount::ZERO,
            Some((AnswerStatus::Ok, value)) => amount(answer::number(value)?),
            Some((AnswerStatus::Reverted | AnswerStatus::TooLarge, _)) => return None,
        };
        before.checked_add(change).map(|after| after.to_string())
    }

    /// The contract's answer, and how it compares with the expected one.
    pub(super) fn verdict(
        &self,
        expected: Option<&str>,
        answer: &StateAnswer,
    ) -> (Option<String>, Verdict) {
        let observed = match (answer.status, self) {
            (AnswerStatus::Reverted, Self::Owner { owner, .. }) if owner.is_zero() => {
                // A burnt item has no owner, and most contracts revert for it.
                return (None, Verdict::Agrees);
            }
            (AnswerStatus::Reverted, _) => return (None, Verdict::Reverts),
            (AnswerStatus::Ok, Self::Owner { .. }) => {
                answer::address(&answer.value).map(|owner| format!("{owner:#x}"))
            }
            (AnswerStatus::Ok, _) => answer::number(&answer.value).map(|number| number.to_string()),
            (AnswerStatus::Empty | AnswerStatus::TooLarge, _) => None,
        };
        let verdict = match (&observed, expected) {
            (None, _) | (_, None) => Verdict::Unclear,
            (Some(observed), Some(expected)) if observed == expected => Verdict::Agrees,
            (Some(_), Some(_)) => Verdict::Differs,
        };
        (observed, verdict)
    }
}
