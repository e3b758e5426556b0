//! Tables of webhooks. All of them are primary data: they cannot be rebuilt from anything else.
//!
//! | table | one row per |
//! |---|---|
//! | `webhook_endpoint` | receiver; a deleted one stays, without its secrets, because its deliveries refer to it |
//! | `webhook_secret` | secret of an endpoint, also an old one during its overlap; encrypted ([`super::vault`]) |
//! | `webhook_version` | counter of changes to endpoints and secrets, which tells whether a copy in memory is current |
//! | `webhook_message` | message, with its body as it is sent |
//! | `webhook_delivery` | endpoint and message |
//! | `webhook_attempt` | request that was made, or would have been |
//! | `webhook_summary` | message about an aggregate whose deliveries were removed: the state of its delivery |
//!
//! Guarantees: numbers of states are those of [`DeliveryState`]. Leaves to others: when a delivery is due, which its
//! job in the queue of the same database determines.

use logmill_io::sql::{Migration, Migrations};

pub(super) static MIGRATIONS: Migrations = Migrations {
    component: "webhooks",
    list: &[
        Migration {
            name: "webhooks",
            statements: "
            CREATE TABLE webhook_endpoint (
                seq {seq},
                id {name} NOT NULL UNIQUE,
                url TEXT NOT NULL,
                description TEXT NOT NULL,
                kinds TEXT NOT NULL,
                customers TEXT NOT NULL,
                ordered INTEGER NOT NULL,
                enabled INTEGER NOT NULL,
                configured INTEGER NOT NULL,
                disabled_why TEXT,
                failing_since BIGINT,
                last_error TEXT,
                last_error_at BIGINT,
                created_at BIGINT NOT NULL,
                updated_at BIGINT NOT NULL,
                deleted_at BIGINT
            );
            CREATE UNIQUE INDEX webhook_endpoint_configured ON webhook_endpoint (url)
                WHERE configured = 1 AND deleted_at IS NULL;
            CREATE TABLE webhook_secret (
                endpoint_seq BIGINT NOT NULL,
                number BIGINT NOT NULL,
                secret TEXT NOT NULL,
                created_at BIGINT NOT NULL,
                valid_until BIGINT,
                PRIMARY KEY (endpoint_seq, number)
            );
            CREATE TABLE webhook_version (
                name {name} NOT NULL PRIMARY KEY,
                version BIGINT NOT NULL
            );
            INSERT INTO webhook_version (name, version) VALUES ('endpoints', 0);
            CREATE TABLE webhook_message (
                seq {seq},
                id {name} NOT NULL UNIQUE,
                kind TEXT NOT NULL,
                customer TEXT,
                body TEXT NOT NULL,
                created_at BIGINT NOT NULL
            );
            CREATE INDEX webhook_message_age ON webhook_message (created_at, seq);
            CREATE TABLE webhook_delivery (
                message_seq BIGINT NOT NULL,
                endpoint_seq BIGINT NOT NULL,
                state BIGINT NOT NULL,
                round BIGINT NOT NULL,
                attempts BIGINT NOT NULL,
                last_status INTEGER,
                last_error TEXT,
                next_at BIGINT,
                created_at BIGINT NOT NULL,
                updated_at BIGINT NOT NULL,
                PRIMARY KEY (message_seq, endpoint_seq)
            ) {clustered};
            CREATE INDEX webhook_delivery_of ON webhook_delivery (endpoint_seq, message_seq);
            CREATE INDEX webhook_delivery_open
                ON webhook_delivery (state, endpoint_seq, message_seq) WHERE state <> 2;
            CREATE INDEX webhook_delivery_failed
                ON webhook_delivery (state, message_seq DESC, endpoint_seq) WHERE state >= 3;
            CREATE TABLE webhook_attempt (
                message_seq BIGINT NOT NULL,
                endpoint_seq BIGINT NOT NULL,
                round INTEGER NOT NULL,
                attempt INTEGER NOT NULL,
                at BIGINT NOT NULL,
                duration_ms BIGINT NOT NULL,
                status INTEGER,
                error TEXT,
                response TEXT NOT NULL,
                dry_run INTEGER NOT NULL,
                PRIMARY KEY (message_seq, endpoint_seq, round, attempt)
            ) {clustered};",
            postgres_only: "
            ALTER TABLE webhook_endpoint ADD PRIMARY KEY (seq);
            ALTER TABLE webhook_message ADD PRIMARY KEY (seq);",
        },
        Migration {
            name: "summaries_and_retries",
            statements: "
            CREATE TABLE webhook_summary (
                message_id {name} NOT NULL PRIMARY KEY,
                deliveries BIGINT NOT NULL,
                succeeded BIGINT NOT NULL,
                attempts BIGINT NOT NULL,
                updated_at BIGINT NOT NULL,
                last_error TEXT
            );
            ALTER TABLE webhook_endpoint ADD COLUMN retries BIGINT NOT NULL DEFAULT 0;",
            postgres_only: "",
        },
        Migration {
            name: "webhook_secret_key",
            statements: "ALTER TABLE webhook_secret ADD COLUMN key_id TEXT;",
            postgres_only: "",
        },
    ],
};

/// State of a delivery.
///
/// ```text
///     (ordered) waiting ──▶ pending ──▶ succeeded
///                             │  ▲
///                             │  └──── replay ──── any settled state
///                             ├──▶ exhausted: no attempt is left
///                             └──▶ cancelled: its endpoint was disabled or deleted
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeliveryState {
    /// It is due, now or later.
    Pending,
    /// It waits for the previous delivery, at an ordered endpoint.
    Waiting,
    Succeeded,
    Exhausted,
    /// Its endpoint was disabled or deleted.
    Cancelled,
}

impl DeliveryState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Waiting, Self::Succeeded, Self::Exhausted, Self::Cancelled];

    pub(super) fn number(self) -> i64 {
        match self {
            Self::Pending => 0,
            Self::Waiting => 1,
            Self::Succeeded => 2,
            Self::Exhausted => 3,
            Self::Cancelled => 4,
        }
    }

    pub(super) fn from_number(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.number() == number)
    }

    /// Name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Waiting => "waiting",
            Self::Succeeded => "succeeded",
            Self::Exhausted => "exhausted",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_of_states_round_trip() {
        for state in DeliveryState::ALL {
            assert_eq!(DeliveryState::from_number(state.number()), Some(state));
            assert_eq!(DeliveryState::from_name(state.name()), Some(state));
        }
        assert_eq!(DeliveryState::from_number(5), None);
    }
}
