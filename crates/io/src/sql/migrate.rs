//! Migrations: numbered statements that bring the tables of one component up to date, on both engines.
//!
//! Guarantees: missing migrations run once, in order, in one transaction together with their history, even if
//! several processes start at the same time. A database whose tables are newer than this program is refused
//! before anything changes; so is a migration that was edited after it had been applied. Leaves to others: the
//! statements, in the common notation of [`super::dialect`].

use deadpool_postgres::Object;
use refinery_core::{Migration as Applied, Runner, Target};
use rusqlite::{Connection, TransactionBehavior};

use super::dialect::Dialect;
use super::postgres::{Postgres, failed};
use super::{Engine, Sql};
use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug)]
pub struct Migrations {
    /// Owner of the tables; part of the name of the history table.
    pub component: &'static str,
    /// In order of their numbers, from 1.
    pub list: &'static [Migration],
}

#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// What it does, in `snake_case`.
    pub name: &'static str,
    /// In the common notation.
    pub statements: &'static str,
    /// Additional statements for PostgreSQL.
    pub postgres_only: &'static str,
}

impl Migrations {
    fn known(&self) -> i64 {
        i64::try_from(self.list.len()).unwrap_or(i64::MAX)
    }

    fn history_table(&self) -> String {
        format!("migrations_{}", self.component)
    }

    fn runner(&self, dialect: Dialect) -> Result<Runner> {
        let migrations = self.list.iter().enumerate().map(|(index, migration)| {
            let mut statements = dialect.rewrite(migration.statements);
            if dialect != Dialect::Sqlite {
                statements.push_str(migration.postgres_only);
            }
            Applied::unapplied(&format!("V{}__{}", index + 1, migration.name), &statements)
        });
        let migrations: Vec<Applied> = migrations
            .collect::<Result<_, _>>()
            .map_err(|error| self.failed("the program", error))?;
        // Grouped: otherwise a crash between a migration and its history entry would leave it applied but
        // unrecorded.
        let mut runner = Runner::new(&migrations).set_target(Target::Latest).set_grouped(true);
        runner.set_migration_table_name(self.history_table());
        Ok(runner)
    }

    fn failed(&self, database: &str, source: refinery_core::Error) -> Error {
        let database = database.to_owned();
        Error::Migration { component: self.component, database, source: Box::new(source) }
    }

    fn accept(&self, found: Option<i64>) -> Result<()> {
        match found {
            Some(found) if found > self.known() => {
                Err(Error::SchemaTooNew { component: self.component, found, known: self.known() })
            }
            _ => Ok(()),
        }
    }
}

impl Sql {
    /// Brings the tables of a component up to date, or refuses.
    pub async fn migrate(&self, migrations: &'static Migrations) -> Result<()> {
        let mut attempt = 0;
        loop {
            let migrated = match &*self.engine {
                Engine::Sqlite(sqlite) => {
                    let name = sqlite.name().to_owned();
                    let migrate =
                        move |connection: &mut _| migrate_sqlite(connection, &name, migrations);
                    sqlite.call(migrate).await?
                }
                Engine::Postgres(postgres) => migrate_postgres(postgres, migrations).await,
            };
            match migrated {
                Err(error) => self.again(&mut attempt, error).await?,
                done => return done,
            }
        }
    }

    /// Refuses tables of another version, or missing ones, without changing anything: for handles that only
    /// read.
    pub async fn expect_migrated(&self, migrations: &'static Migrations) -> Result<()> {
        let text = format!("SELECT max(version) FROM {}", migrations.history_table());
        let found = match self.query(&text, Vec::new()).await {
            Ok(answer) => answer.row()?.opt_int(0)?,
            Err(error) if error.is_missing_table() => None,
            Err(error) => return Err(error),
        };
        migrations.accept(found)?;
        if found == Some(migrations.known()) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the {} tables are at version {} and this program needs {}: start the server once to bring them \
             up to date",
            migrations.component,
            found.unwrap_or(0),
            migrations.known()
        )))
    }
}

async fn migrate_postgres(postgres: &Postgres, migrations: &'static Migrations) -> Result<()> {
    // Removed from the pool permanently: the lock and the lifted time limit end with the connection, even if
    // the caller is dropped halfway.
    let mut client = Object::take(postgres.client().await?);
    // Processes that start at the same time take turns.
    let lock = format!(
        "SELECT pg_advisory_lock(hashtext(current_schema() || '.{}')); SET statement_timeout = 0",
        migrations.history_table()
    );
    client.batch_execute(&lock).await.map_err(|source| failed("lock for migrations", source))?;
    let table = migrations.history_table();
    let exists = client.query_one("SELECT to_regclass($1) IS NOT NULL", &[&table]).await;
    if exists.map_err(|source| failed("check for the migration history", source))?.get(0) {
        let newest = format!("SELECT max(version)::bigint FROM {table}");
        let row = client.query_one(&newest, &[]).await;
        migrations
            .accept(row.map_err(|source| failed("read the migration history", source))?.get(0))?;
    }
    let runner = migrations.runner(Dialect::Postgres { skew_ms: 0 })?;
    let client: &mut tokio_postgres::Client = &mut client;
    runner
        .run_async(client)
        .await
        .map(|_| ())
        .map_err(|error| migrations.failed("PostgreSQL", error))
}

fn migrate_sqlite(
    connection: &mut Connection,
    name: &str,
    migrations: &'static Migrations,
) -> Result<()> {
    let before = sqlite_version(connection, name, migrations)?;
    migrations.accept(before)?;
    // A transaction that starts with a read could not become a writer next to another one.
    connection.set_transaction_behavior(TransactionBehavior::Immediate);
    let failed = match migrations.runner(Dialect::Sqlite)?.run(connection) {
        Ok(_) => return Ok(()),
        Err(error) => migrations.failed(name, error),
    };
    if sqlite_version(connection, name, migrations)? == before {
        return Err(failed);
    }
    // Another process was faster: its history entry kept ours from being written, so none of ours took effect.
    migrate_sqlite(connection, name, migrations)
}

/// The version of the tables; `None` if they do not exist.
fn sqlite_version(
    connection: &Connection,
    name: &str,
    migrations: &Migrations,
) -> Result<Option<i64>> {
    let at = |source| {
        let doing = format!("read the history of migrations on {name}");
        Error::Sqlite { doing, source }
    };
    let table = migrations.history_table();
    let exists = "SELECT count(*) > 0 FROM sqlite_master WHERE name = ?1";
    let exists: bool = connection.query_row(exists, [&table], |row| row.get(0)).map_err(at)?;
    if !exists {
        return Ok(None);
    }
    let newest = format!("SELECT max(version) FROM {table}");
    connection.query_row(&newest, [], |row| row.get(0)).map_err(at)
}
