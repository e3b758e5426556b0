//! Derives column names from parameter names.
//!
//! Guarantees: a name needs no quotes in either engine, is not too long, and is unique in its table. Leaves to others:
//! what the columns hold.

use crate::derive::Column;

/// Maximum length of a name, with room for a numeric suffix.
const LETTERS_MAX: usize = 28;

/// SQL keywords, and names of common columns.
const TAKEN: &[&str] = &[
    "abort",
    "action",
    "add",
    "after",
    "all",
    "alter",
    "always",
    "analyse",
    "analyze",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "asymmetric",
    "attach",
    "authorization",
    "autoincrement",
    "before",
    "begin",
    "between",
    "binary",
    "both",
    "by",
    "cascade",
    "case",
    "cast",
    "chain_id",
    "check",
    "collate",
    "collation",
    "column",
    "commit",
    "concurrently",
    "conflict",
    "constraint",
    "create",
    "cross",
    "current",
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "database",
    "default",
    "deferrable",
    "deferred",
    "delete",
    "desc",
    "detach",
    "distinct",
    "do",
    "drop",
    "each",
    "else",
    "end",
    "escape",
    "except",
    "exclude",
    "exclusive",
    "exists",
    "explain",
    "fail",
    "false",
    "fetch",
    "filter",
    "first",
    "first_at",
    "following",
    "for",
    "foreign",
    "freeze",
    "from",
    "full",
    "generated",
    "glob",
    "grant",
    "group",
    "groups",
    "having",
    "if",
    "ignore",
    "ilike",
    "immediate",
    "in",
    "index",
    "indexed",
    "initially",
    "inner",
    "insert",
    "instead",
    "intersect",
    "into",
    "is",
    "isnull",
    "join",
    "key",
    "last",
    "last_at",
    "lateral",
    "leading",
    "left",
    "like",
    "limit",
    "localtime",
    "localtimestamp",
    "match",
    "materialized",
    "natural",
    "no",
    "not",
    "nothing",
    "notnull",
    "null",
    "nulls",
    "of",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "others",
    "outer",
    "over",
    "overlaps",
    "partition",
    "placing",
    "plan",
    "pragma",
    "preceding",
    "primary",
    "query",
    "raise",
    "range",
    "recursive",
    "references",
    "regexp",
    "reindex",
    "release",
    "rename",
    "replace",
    "restrict",
    "returning",
    "right",
    "rollback",
    "row",
    "rows",
    "savepoint",
    "select",
    "session_user",
    "set",
    "similar",
    "some",
    "symmetric",
    "system_user",
    "table",
    "tablesample",
    "temp",
    "temporary",
    "then",
    "ties",
    "tip_block",
    "to",
    "trailing",
    "transaction",
    "trigger",
    "true",
    "unbounded",
    "union",
    "unique",
    "update",
    "user",
    "using",
    "vacuum",
    "values",
    "variadic",
    "verbose",
    "view",
    "virtual",
    "when",
    "where",
    "window",
    "with",
    "without",
];

/// Converts a Solidity name to snake case: `integratorFee` becomes `integrator_fee`. Returns `otherwise` if nothing is
/// left.
pub(super) fn word(name: &str, otherwise: &str) -> String {
    let mut word = String::new();
    let mut before_lower = false;
    for letter in name.chars().filter(char::is_ascii) {
        if !letter.is_ascii_alphanumeric() {
            before_lower = false;
            if !word.is_empty() && !word.ends_with('_') {
                word.push('_');
            }
            continue;
        }
        // A new word begins where an upper-case letter follows a lower-case one: `URLPart` stays one word.
        if letter.is_ascii_uppercase() && before_lower {
            word.push('_');
        }
        before_lower = letter.is_ascii_lowercase() || letter.is_ascii_digit();
        word.push(letter.to_ascii_lowercase());
    }
    word.truncate(LETTERS_MAX);
    let word = word.trim_matches('_');
    match word.chars().next() {
        None => otherwise.to_owned(),
        Some(first) if first.is_ascii_digit() => format!("n{word}"),
        Some(_) => word.to_owned(),
    }
}

/// A unique name for a parameter's column.
pub(super) fn column(parameter: &str, number: usize, others: &[Column]) -> String {
    let word = word(parameter, &format!("arg{number}"));
    let is_free =
        |name: &str| !TAKEN.contains(&name) && others.iter().all(|column| column.name != name);
    let underscored = format!("{word}_");
    let numbered = (2..).map(|number| format!("{word}_{number}"));
    let candidates = [word.clone(), underscored].into_iter().chain(numbered);
    candidates.into_iter().find(|name| is_free(name)).unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::derive::Kind;
    use crate::derive::table::once;

    #[test]
    fn names_become_words() {
        for (name, expected) in [
            ("integratorFee", "integrator_fee"),
            ("_token", "token"),
            ("sqrtPriceX96", "sqrt_price_x96"),
            ("tokenURI", "token_uri"),
            ("__", "nothing"),
            ("", "nothing"),
            ("$éa", "a"),
            ("1st", "n1st"),
            ("AAAAAAAAAABBBBBBBBBBCCCCCCCCCCDDDDDDDDDD", "aaaaaaaaaabbbbbbbbbbcccccccc"),
        ] {
            assert_eq!(word(name, "nothing"), expected, "{name}");
        }
    }

    #[test]
    fn column_names_are_unique_and_no_sql_keywords() {
        let others = [once("token", Kind::Int), once("to_", Kind::Int)];
        for (name, expected) in [
            ("from", "from_"),
            ("to", "to_2"),
            ("token", "token_"),
            ("_token", "token_"),
            ("", "arg7"),
            ("value", "value"),
        ] {
            assert_eq!(column(name, 7, &others), expected, "{name}");
        }
    }

    #[test]
    fn taken_words_are_sorted_and_unique() {
        assert!(TAKEN.windows(2).all(|two| two[0] < two[1]));
    }
}
