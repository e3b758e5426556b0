//! How many cases random tests run: the usual number, or a multiple in a proof run.
//!
//! Guarantees: the usual number unless the variable `LOGMILL_PROOF` holds a factor, which `make proof` sets.
//! Leaves to others: tests without a number of their own, which `PROPTEST_CASES` controls; that variable does
//! not affect tests that set a number.

/// Returns how many cases or seeds to run in a test that usually runs `usual`.
pub fn proof_cases(usual: u32) -> u32 {
    let factor = std::env::var("LOGMILL_PROOF").ok().and_then(|factor| factor.parse().ok());
    scaled(usual, factor)
}

fn scaled(usual: u32, factor: Option<u32>) -> u32 {
    usual.saturating_mul(factor.unwrap_or(1).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_runs_a_multiple_and_never_less() {
        assert_eq!(scaled(12, None), 12);
        assert_eq!(scaled(12, Some(8)), 96);
        assert_eq!(scaled(12, Some(0)), 12);
        assert_eq!(scaled(u32::MAX, Some(8)), u32::MAX);
    }
}
