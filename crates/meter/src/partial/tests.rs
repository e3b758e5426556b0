//! Tests of partials: against a naive fold, in any order and split; bytes.
