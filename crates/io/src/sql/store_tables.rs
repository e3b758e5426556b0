//! Tables and functions that every database has: records, fences, and arithmetic of amounts.
//!
//! | table | columns |
//! |---|---|
//! | `meta_record` | `key` primary key, `value`, `version` |
//! | `meta_fence` | `name` primary key, `counter` |
//!
//! Guarantees: an open [`super::Sql`] has them, so [`super::Tx::hold`] works on any database. Leaves to others:
//! the records ([`crate::meta::SqlMeta`]) and the tables of each component.

use super::migrate::{Migration, Migrations};

pub(super) static STORE_TABLES: Migrations = Migrations {
    component: "store",
    list: &[Migration {
        name: "records_and_fences",
        statements: "
            CREATE TABLE meta_record (
                key {bytes} NOT NULL PRIMARY KEY,
                value {bytes} NOT NULL,
                version BIGINT NOT NULL
            );
            CREATE TABLE meta_fence (
                name {name} NOT NULL PRIMARY KEY,
                counter BIGINT NOT NULL
            );",
        postgres_only: "
            CREATE FUNCTION amount_add(numeric, numeric) RETURNS numeric
                LANGUAGE sql IMMUTABLE STRICT AS 'SELECT $1 + $2';
            CREATE FUNCTION amount_text(numeric) RETURNS text
                LANGUAGE sql IMMUTABLE STRICT AS 'SELECT CAST($1 AS text)';",
    }, Migration {
        name: "bounded_amounts",
        statements: "",
        // Not STRICT, so that it can be inlined. The overflow function takes an argument; otherwise the planner
        // would evaluate it.
        postgres_only: "
            CREATE FUNCTION amount_overflow(numeric) RETURNS numeric LANGUAGE plpgsql IMMUTABLE AS
                'BEGIN RAISE numeric_value_out_of_range USING MESSAGE = ''an amount of more than 320 bits''; END';
            CREATE OR REPLACE FUNCTION amount_add(numeric, numeric) RETURNS numeric
                LANGUAGE sql IMMUTABLE AS '
                SELECT CASE WHEN abs($1 + $2) >
                2135987035920910082395021706169552114602704522356652769947041607822219725780640550022962086936575
                THEN amount_overflow($1 + $2) ELSE $1 + $2 END';",
    }],
};
