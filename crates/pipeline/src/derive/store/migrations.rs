//! The schema of [`super`], version by version. The list is append-only: a released migration never changes.

use logmill_io::sql::{Migration, Migrations};

pub static MIGRATIONS: Migrations = Migrations {
    component: "derive",
    list: &[
        Migration {
            name: "lines_and_addresses",
            statements: "
            CREATE TABLE address (
                id {seq},
                address {bytes} NOT NULL UNIQUE
            );
            CREATE TABLE derive_lock (id BIGINT NOT NULL PRIMARY KEY);
            INSERT INTO derive_lock (id) VALUES (1);
            CREATE TABLE derive_line (
                chain_id BIGINT NOT NULL,
                processor {name} NOT NULL,
                generation BIGINT NOT NULL,
                version BIGINT NOT NULL,
                parameters TEXT NOT NULL,
                tables TEXT NOT NULL,
                state BIGINT NOT NULL,
                indexed BIGINT NOT NULL,
                tip {bytes} NOT NULL,
                from_height BIGINT,
                last_height BIGINT,
                created_at BIGINT NOT NULL,
                updated_at BIGINT NOT NULL,
                PRIMARY KEY (chain_id, processor, generation)
            );
            CREATE VIEW indexing_checkpoints AS
                SELECT chain_id, processor AS service_name, from_height, last_height, updated_at
                FROM derive_line WHERE state = 1;
            CREATE VIEW worker_leases AS
                SELECT c.chain_id, c.consumer AS worker_type, c.start_height AS from_height,
                    c.end_height AS to_height, j.owner AS leased_by, j.lease_until AS lease_expires_at,
                    CASE WHEN j.state = 2 THEN 'COMPLETED' WHEN j.state = 1 THEN 'ACTIVE'
                         WHEN j.state = 0 AND j.attempts = 0 THEN 'PENDING' ELSE 'FAILED' END AS status,
                    j.attempts AS attempt, j.error AS last_error, j.created_at
                FROM coverage_claim AS c JOIN job AS j ON j.kind = c.job_kind AND j.key = c.job_key;
            CREATE VIEW last_block AS
                SELECT chain_id, consumer, MAX(end_height) AS block_number
                FROM coverage_claim GROUP BY chain_id, consumer;
            CREATE VIEW block_jobs AS
                SELECT c.chain_id, c.consumer, c.start_height AS from_block, c.end_height - 1 AS to_block,
                    CASE WHEN j.state = 2 THEN 'completed' WHEN j.state = 1 THEN 'processing'
                         WHEN j.state = 0 AND j.attempts = 0 THEN 'pending' ELSE 'failed' END AS status,
                    j.owner AS locked_by, j.lease_until AS locked_until, j.attempts, j.error, j.created_at
                FROM coverage_claim AS c JOIN job AS j ON j.kind = c.job_kind AND j.key = c.job_key;",
            postgres_only: "ALTER TABLE address ADD PRIMARY KEY (id);",
        },
        Migration {
            name: "replacements",
            statements: "
                ALTER TABLE derive_line ADD COLUMN replacements BIGINT NOT NULL DEFAULT 0;
                ALTER TABLE derive_line ADD COLUMN behind TEXT;",
            postgres_only: "",
        },
        Migration {
            name: "replacement_marks",
            // NULL: the line adopts the log that it sees.
            statements: "
                ALTER TABLE derive_line ADD COLUMN replacement_mark BIGINT;
                ALTER TABLE derive_line ADD COLUMN drops_unstored BIGINT NOT NULL DEFAULT 0;",
            postgres_only: "",
        },
        Migration {
            name: "checkpoints",
            statements: "
                CREATE TABLE checkpoint (
                    chain_id BIGINT NOT NULL,
                    name {name} NOT NULL,
                    from_height BIGINT,
                    last_height BIGINT,
                    updated_at BIGINT NOT NULL,
                    PRIMARY KEY (chain_id, name)
                );
                DROP VIEW indexing_checkpoints;
                CREATE VIEW indexing_checkpoints AS
                    SELECT chain_id, processor AS service_name, from_height, last_height, updated_at
                    FROM derive_line WHERE state = 1
                    UNION ALL
                    SELECT chain_id, name AS service_name, from_height, last_height, updated_at
                    FROM checkpoint;",
            postgres_only: "",
        },
        Migration {
            name: "replacements_seen",
            // NULL: the same as the applied position.
            statements: "
                ALTER TABLE derive_line ADD COLUMN seen_replacement BIGINT;
                ALTER TABLE derive_line ADD COLUMN seen_mark BIGINT;",
            postgres_only: "",
        },
        Migration {
            name: "checkpoints_that_say_whether_they_are_complete",
            statements: "
                DROP VIEW indexing_checkpoints;
                CREATE VIEW indexing_checkpoints AS
                    SELECT chain_id, processor AS service_name, from_height, last_height, updated_at,
                        (behind IS NULL) AS complete, behind AS reason
                    FROM derive_line WHERE state = 1
                    UNION ALL
                    SELECT chain_id, name AS service_name, from_height, last_height, updated_at,
                        (1 = 1) AS complete, CAST(NULL AS TEXT) AS reason
                    FROM checkpoint;",
            postgres_only: "",
        },
        Migration {
            name: "settings_that_empty_tables",
            statements: "
                ALTER TABLE derive_line ADD COLUMN allows_empty BIGINT NOT NULL DEFAULT 0;
                ALTER TABLE derive_line ADD COLUMN empties TEXT;
                ALTER TABLE derive_line ADD COLUMN cleared TEXT;",
            postgres_only: "",
        },
    ],
};
