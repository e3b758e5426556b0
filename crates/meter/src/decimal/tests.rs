//! Tests of decimals: text, arithmetic and bytes against naive ones.
