//! Migrations: numbered statements that bring the tables of one component up to date, on both engines.
//!
//! Guarantees: each migration runs once, in order, in a transaction, also when several processes start at the
//! same time; a database whose tables are newer than this program is refused before anything is touched; a
//! migration that was changed after it had been applied is refused too. Leaves to others: the statements, which
//! are written in the common notation of [`super::dialect`].

use refinery_core::{Migration as Applied, Runner, Target};

use super::dialect::Dialect;
use super::postgres::failed;
use super::{Engine, Sql};
use crate::error::{Error, Result};

/// The tables of one component.
#[derive(Clone, Copy, Debug)]
pub struct Migrations {
    /// Whose tables; part of the name of the history table.
    pub component: &'static str,
    /// In order of their numbers, from 1.
    pub list: &'static [Migration],
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// What it does, in `snake_case`.
    pub name: &'static str,
    /// The statements, in the common notation.
    pub statements: &'static str,
    /// What PostgreSQL alone needs besides.
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
        let migrations: Vec<Applied> =
            migrations.collect::<Result<_, _>>().map_err(|error| self.failed(error))?;
        let mut runner = Runner::new(&migrations).set_target(Target::Latest);
        runner.set_migration_table_name(self.history_table());
        Ok(runner)
    }

    fn failed(&self, source: refinery_core::Error) -> Error {
        Error::Migration { component: self.component, source: Box::new(source) }
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
        match &*self.engine {
            Engine::Sqlite(sqlite) => {
                sqlite.call(move |connection| migrate_sqlite(connection, migrations)).await?
            }
            Engine::Postgres(_) => self.migrate_postgres(migrations).await,
        }
    }

    /// Refuses tables that are newer, and tables that are older or missing, without changing anything: for
    /// handles that only read.
    pub async fn expect_migrated(&self, migrations: &'static Migrations) -> Result<()> {
        let text = format!("SELECT max(version) FROM {}", migrations.history_table());
        let found = match self.query(&text, Vec::new()).await {
            Ok(answer) => answer.row()?.opt_int(0)?,
            Err(error) if matches!(error, Error::Sqlite { .. }) => None,
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

    async fn migrate_postgres(&self, migrations: &'static Migrations) -> Result<()> {
        let Engine::Postgres(postgres) = &*self.engine else {
            return Err(Error::invalid("not a PostgreSQL database"));
        };
        let mut client = postgres.client().await?;
        // Several processes that start together take turns.
        let lock = format!(
            "SELECT pg_advisory_lock(hashtext(current_schema() || '.{}'))",
            migrations.history_table()
        );
        client
            .batch_execute(&lock)
            .await
            .map_err(|source| failed("lock for migrations", source))?;
        let outcome = self.migrate_locked(&mut client, migrations).await;
        // The lock ends with the connection at the latest, so that is what we end if unlocking fails.
        if client.batch_execute("SELECT pg_advisory_unlock_all()").await.is_err() {
            drop(deadpool_postgres::Object::take(client));
        }
        outcome
    }

    async fn migrate_locked(
        &self,
        client: &mut deadpool_postgres::Object,
        migrations: &'static Migrations,
    ) -> Result<()> {
        let table = migrations.history_table();
        let exists = "SELECT to_regclass($1) IS NOT NULL";
        let exists = client.query_one(exists, &[&table]).await;
        let found = if exists.map_err(|source| failed("look for the history", source))?.get(0) {
            let newest = format!("SELECT max(version)::bigint FROM {table}");
            let row = client.query_one(&newest, &[]).await;
            row.map_err(|source| failed("read the history", source))?.get(0)
        } else {
            None
        };
        migrations.accept(found)?;
        if found == Some(migrations.known()) {
            return Ok(());
        }
        let runner = migrations.runner(Dialect::Postgres { skew_ms: 0 })?;
        let client: &mut tokio_postgres::Client = client;
        runner.run_async(client).await.map(|_| ()).map_err(|error| migrations.failed(error))
    }
}

fn migrate_sqlite(
    connection: &mut rusqlite::Connection,
    migrations: &'static Migrations,
) -> Result<()> {
    let at = |source| Error::Sqlite { doing: "read the history of migrations".to_owned(), source };
    let table = migrations.history_table();
    let exists: bool = connection
        .query_row("SELECT count(*) > 0 FROM sqlite_master WHERE name = ?1", [&table], |row| {
            row.get(0)
        })
        .map_err(at)?;
    if exists {
        let newest = format!("SELECT max(version) FROM {table}");
        let found = connection.query_row(&newest, [], |row| row.get(0)).map_err(at)?;
        migrations.accept(found)?;
        if found == Some(migrations.known()) {
            return Ok(());
        }
    }
    let runner = migrations.runner(Dialect::Sqlite)?;
    runner.run(connection).map(|_| ()).map_err(|error| migrations.failed(error))
}
