//! All tables of the meter.
//!
//! | table | kind | holds |
//! |---|---|---|
//! | `meter_head` | source | one row that every change locks first: next numbers, and which keys are sealed |
//! | `meter_customer`, `meter_series` | source | numbers for names: an event type of a customer and group |
//! | `meter_event` | source | usage events, in order of arrival |
//! | `meter_place` | projection of events | index of events by series and fifteen minutes |
//! | `meter_unplaced` | projection of events | the same for the newest events, a list for each commit |
//! | `meter_keys` | source | blobs of the keys of older events: which (source, id) were seen |
//! | `meter_keys_loose` | work | blobs of keys that are not entered yet, or that were replaced |
//! | `meter_chain` | source | up to which time usage of each chain is complete |
//! | `meter_correction` | source | who cancelled or amended which event, when and why |
//! | `meter_archive` | source | events that were moved to blobs |
//! | `meter_archive_bucket` | projection of blobs | which blobs have events of which fifteen minutes |
//! | `meter_aggregate`, `meter_revision` | source | figures of a period, current and earlier revisions |
//! | `meter_alert` | source | thresholds that were crossed |
//! | `meter_partial` | projection of events | summary of one series in fifteen minutes, ordered by series |
//! | `meter_partial_recent` | projection of events | the same for recent buckets, ordered by bucket |
//! | `meter_audit` | work | progress of the audit of everything stored |
//! | `meter_damage` | work | events and slices of the archive that are not what was written |
//! | `meter_touched`, `meter_due` | work | periods with usage that no aggregate reflects yet |
//! | `meter_key_source` | source | the source of each API key |
//! | `meter_request` | source, for a day | outcomes of requests with an `Idempotency-Key` |
//! | `meter_chain_block` | source | for each block with usage: one entry per log and rule |
//! | `meter_chain_rule` | source | numbers for rules, one for each name and definition |
//! | `meter_chain_state` | source | the replacement that was applied last, and the one being applied |
//! | `meter_chain_correction` | source | one row for each replacement that changed usage: what, why, how much |
//!
//! Guarantees: only the holder of the head's lock changes usage, so that numbers are assigned in the order of commits.
//! Leaves to others: which module reads and writes which table.

use logmill_io::sql::{Migration, Migrations};

pub(crate) const MIGRATIONS: Migrations = Migrations {
    component: "meter",
    list: &[
        Migration {
            name: "meter",
            statements: "
            CREATE TABLE meter_head (
                id BIGINT NOT NULL PRIMARY KEY,
                next_seq BIGINT NOT NULL,
                next_name BIGINT NOT NULL,
                sealed_seq BIGINT NOT NULL,
                keys_version BIGINT NOT NULL,
                unplaced BIGINT NOT NULL,
                settled_bucket BIGINT NOT NULL,
                settled_series BIGINT NOT NULL
            );
            INSERT INTO meter_head (id, next_seq, next_name, sealed_seq, keys_version, unplaced,
                    settled_bucket, settled_series)
                VALUES (1, 1, 1, 1, 1, 0, 0, 0);
            CREATE TABLE meter_customer (
                id BIGINT NOT NULL PRIMARY KEY,
                name {name} NOT NULL UNIQUE
            );
            CREATE TABLE meter_series (
                id BIGINT NOT NULL PRIMARY KEY,
                customer BIGINT NOT NULL,
                event_type {name} NOT NULL,
                dims {name} NOT NULL,
                UNIQUE (customer, event_type, dims)
            );
            CREATE INDEX meter_series_customer ON meter_series (customer, id);
            CREATE INDEX meter_series_type ON meter_series (event_type, customer);
            CREATE TABLE meter_event (
                seq BIGINT NOT NULL PRIMARY KEY,
                bucket BIGINT NOT NULL,
                series BIGINT NOT NULL,
                time_ms BIGINT NOT NULL,
                received_ms BIGINT NOT NULL,
                source {name} NOT NULL,
                id {name} NOT NULL,
                amount {name} NOT NULL,
                metadata {name},
                state BIGINT NOT NULL,
                key_hi BIGINT NOT NULL,
                key_lo BIGINT NOT NULL,
                content BIGINT NOT NULL
            );
            CREATE TABLE meter_place (
                bucket BIGINT NOT NULL,
                series BIGINT NOT NULL,
                seq BIGINT NOT NULL,
                PRIMARY KEY (bucket, series, seq)
            ) {clustered};
            CREATE TABLE meter_unplaced (
                first_seq BIGINT NOT NULL PRIMARY KEY,
                places {bytes} NOT NULL
            );
            CREATE TABLE meter_keys (
                first_seq BIGINT NOT NULL,
                part BIGINT NOT NULL,
                end_seq BIGINT NOT NULL,
                blob {name} NOT NULL,
                PRIMARY KEY (first_seq, part)
            );
            CREATE TABLE meter_keys_loose (
                blob {name} NOT NULL PRIMARY KEY,
                doomed BIGINT NOT NULL,
                since_ms BIGINT NOT NULL
            );
            CREATE TABLE meter_chain (
                chain BIGINT NOT NULL PRIMARY KEY,
                complete_ms BIGINT NOT NULL
            );
            CREATE TABLE meter_correction (
                number {seq},
                event_seq BIGINT NOT NULL,
                series BIGINT NOT NULL,
                bucket BIGINT NOT NULL,
                action {name} NOT NULL,
                value_before {name} NOT NULL,
                value_after {name},
                reason {name} NOT NULL,
                actor {name} NOT NULL,
                at_ms BIGINT NOT NULL
            );
            CREATE INDEX meter_correction_event ON meter_correction (event_seq);
            CREATE INDEX meter_correction_place ON meter_correction (series, bucket);
            CREATE TABLE meter_archive (
                number BIGINT NOT NULL PRIMARY KEY,
                seq_first BIGINT NOT NULL,
                seq_last BIGINT NOT NULL,
                events BIGINT NOT NULL,
                blob {name} NOT NULL,
                hash {bytes} NOT NULL
            );
            CREATE TABLE meter_archive_bucket (
                bucket BIGINT NOT NULL,
                number BIGINT NOT NULL,
                PRIMARY KEY (bucket, number)
            ) {clustered};
            CREATE TABLE meter_partial (
                series BIGINT NOT NULL,
                bucket BIGINT NOT NULL,
                revision BIGINT NOT NULL,
                state {bytes} NOT NULL,
                PRIMARY KEY (series, bucket)
            ) {clustered};
            CREATE TABLE meter_partial_recent (
                bucket BIGINT NOT NULL,
                series BIGINT NOT NULL,
                revision BIGINT NOT NULL,
                state {bytes} NOT NULL,
                PRIMARY KEY (bucket, series)
            ) {clustered};
            CREATE TABLE meter_touched (
                bucket BIGINT NOT NULL,
                customer BIGINT NOT NULL,
                events BIGINT NOT NULL,
                PRIMARY KEY (bucket, customer)
            ) {clustered};
            CREATE TABLE meter_due (
                customer BIGINT NOT NULL,
                period {name} NOT NULL,
                period_key {name} NOT NULL,
                start_ms BIGINT NOT NULL,
                end_ms BIGINT NOT NULL,
                generation BIGINT NOT NULL,
                PRIMARY KEY (customer, period, period_key)
            ) {clustered};
            CREATE INDEX meter_due_end ON meter_due (end_ms);
            CREATE TABLE meter_aggregate (
                id {name} NOT NULL PRIMARY KEY,
                customer BIGINT NOT NULL,
                period {name} NOT NULL,
                period_key {name} NOT NULL,
                start_ms BIGINT NOT NULL,
                end_ms BIGINT NOT NULL,
                state BIGINT NOT NULL,
                revision BIGINT NOT NULL,
                inputs {bytes} NOT NULL,
                body {name} NOT NULL,
                computed_ms BIGINT NOT NULL
            );
            CREATE INDEX meter_aggregate_customer ON meter_aggregate (customer, period, start_ms);
            CREATE INDEX meter_aggregate_start ON meter_aggregate (start_ms, id);
            CREATE TABLE meter_revision (
                id {name} NOT NULL,
                revision BIGINT NOT NULL,
                state BIGINT NOT NULL,
                inputs {bytes} NOT NULL,
                body {name} NOT NULL,
                computed_ms BIGINT NOT NULL,
                PRIMARY KEY (id, revision)
            );
            CREATE TABLE meter_alert (
                rule {name} NOT NULL,
                customer BIGINT NOT NULL,
                period_key {name} NOT NULL,
                threshold {name} NOT NULL,
                value {name} NOT NULL,
                at_ms BIGINT NOT NULL,
                PRIMARY KEY (rule, customer, period_key, threshold)
            );",
            // Rows that change with every commit get room for in-place updates; without it their tables would grow
            // until a vacuum.
            postgres_only: "
            ALTER TABLE meter_head SET (fillfactor = 10);
            ALTER TABLE meter_touched SET (fillfactor = 40);
            ALTER TABLE meter_partial_recent SET (fillfactor = 40);",
        },
        Migration {
            name: "sources_and_requests",
            // A query over all customers reads the series of a type ordered by number.
            statements: "
            CREATE INDEX meter_series_of_type ON meter_series (event_type, id);
            CREATE TABLE meter_key_source (
                fingerprint {name} NOT NULL PRIMARY KEY,
                key_name {name} NOT NULL,
                source {name} NOT NULL,
                used BIGINT NOT NULL,
                seen_ms BIGINT NOT NULL
            );
            CREATE TABLE meter_request (
                key {name} NOT NULL PRIMARY KEY,
                request {name} NOT NULL,
                outcome {name} NOT NULL,
                at_ms BIGINT NOT NULL
            );
            CREATE INDEX meter_request_age ON meter_request (at_ms);",
            postgres_only: "",
        },
        Migration {
            name: "meter_event_checks",
            // No default: existing rows have no checksums, and one computed now would prove nothing.
            statements: "
            ALTER TABLE meter_event ADD COLUMN checks BIGINT;
            CREATE TABLE meter_audit (
                id BIGINT NOT NULL PRIMARY KEY,
                next_seq BIGINT NOT NULL,
                next_slice BIGINT NOT NULL,
                checked BIGINT NOT NULL,
                unchecked BIGINT NOT NULL,
                rounds BIGINT NOT NULL,
                round_ended_ms BIGINT
            );
            INSERT INTO meter_audit (id, next_seq, next_slice, checked, unchecked, rounds)
                VALUES (1, 0, 0, 0, 0, 0);
            CREATE TABLE meter_damage (
                kind {name} NOT NULL,
                number BIGINT NOT NULL,
                found_ms BIGINT NOT NULL,
                PRIMARY KEY (kind, number)
            );",
            postgres_only: "",
        },
        Migration {
            name: "meter_name_checks",
            // No default: the audit fills in the checksums of existing rows.
            statements: "
            ALTER TABLE meter_customer ADD COLUMN checks BIGINT;
            ALTER TABLE meter_series ADD COLUMN checks BIGINT;
            ALTER TABLE meter_audit ADD COLUMN next_name BIGINT NOT NULL DEFAULT 0;",
            postgres_only: "",
        },
    ],
};

/// The tables of chains: what was recorded of which block.
pub(crate) const CHAIN_MIGRATIONS: Migrations = Migrations {
    component: "meter_chain",
    list: &[
        Migration {
            name: "ledger",
            statements: "
            CREATE TABLE meter_chain_block (
                chain BIGINT NOT NULL,
                height BIGINT NOT NULL,
                hash {bytes} NOT NULL,
                entries {bytes} NOT NULL,
                PRIMARY KEY (chain, height, hash)
            ) {clustered};
            CREATE TABLE meter_chain_rule (
                chain BIGINT NOT NULL,
                number BIGINT NOT NULL,
                name {name} NOT NULL,
                definition BIGINT NOT NULL,
                PRIMARY KEY (chain, number)
            );
            CREATE TABLE meter_chain_state (
                chain BIGINT NOT NULL PRIMARY KEY,
                version BIGINT NOT NULL,
                begun BIGINT NOT NULL,
                applied BIGINT NOT NULL,
                pending_ms BIGINT,
                pending_since_ms BIGINT
            );
            CREATE TABLE meter_chain_correction (
                chain BIGINT NOT NULL,
                seq BIGINT NOT NULL,
                first_block BIGINT NOT NULL,
                last_block BIGINT NOT NULL,
                reason {name} NOT NULL,
                blocks BIGINT NOT NULL,
                cancelled BIGINT NOT NULL,
                recorded BIGINT NOT NULL,
                begun_ms BIGINT NOT NULL,
                done_ms BIGINT,
                PRIMARY KEY (chain, seq)
            );",
            postgres_only: "",
        },
        Migration {
            name: "logs_of_replacements",
            statements: "
            ALTER TABLE meter_chain_state ADD COLUMN log BIGINT NOT NULL DEFAULT 0;
            ALTER TABLE meter_chain_state ADD COLUMN mark BIGINT;
            CREATE TABLE meter_chain_correction_of_log (
                chain BIGINT NOT NULL,
                log BIGINT NOT NULL,
                seq BIGINT NOT NULL,
                first_block BIGINT NOT NULL,
                last_block BIGINT NOT NULL,
                reason {name} NOT NULL,
                blocks BIGINT NOT NULL,
                cancelled BIGINT NOT NULL,
                recorded BIGINT NOT NULL,
                begun_ms BIGINT NOT NULL,
                done_ms BIGINT,
                PRIMARY KEY (chain, log, seq)
            );
            INSERT INTO meter_chain_correction_of_log (chain, log, seq, first_block, last_block,
                    reason, blocks, cancelled, recorded, begun_ms, done_ms)
                SELECT chain, 0, seq, first_block, last_block, reason, blocks, cancelled, recorded,
                    begun_ms, done_ms FROM meter_chain_correction;
            DROP TABLE meter_chain_correction;
            ALTER TABLE meter_chain_correction_of_log RENAME TO meter_chain_correction;",
            postgres_only: "",
        },
        Migration {
            name: "replacements_seen",
            statements: "
            ALTER TABLE meter_chain_state ADD COLUMN seen BIGINT NOT NULL DEFAULT 0;
            ALTER TABLE meter_chain_state ADD COLUMN seen_mark BIGINT;",
            postgres_only: "",
        },
    ],
};
