//! `logmill preflight`: runs the checks of a start, and no more.
//!
//! Besides the checks of stores, it reads all SQLite files completely, and asks the nodes for their chain id. A start
//! continues without a node: usage and stored chains are served, ingest retries.
//!
//! Guarantees: every check runs, and its result is printed; an error if one fails. Leaves to others: the checks of
//! stores ([`crate::stores::preflight`]).

use std::path::PathBuf;

use logmill_io::sql::check_database as check_file;
use logmill_io::{Error as StoreError, SystemClock};

use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;
use crate::server::chains;
use crate::stores;
use crate::stores::preflight::{check_blobs, check_database, check_folder, check_free_space};

pub(crate) async fn run(settings: &Settings) -> Result<()> {
    let mut checks = Vec::new();
    let fine = |checked: Result<()>| checked.map(|()| "fine".to_owned());
    // A running server has checked folder and files, and no other process may write there.
    let taken = match settings.postgres() {
        None => Some(stores::take(&settings.data).await),
        Some(_) => None,
    };
    let in_use = match taken {
        Some(Err(Error::Store(error @ StoreError::FolderInUse { .. }))) => Some(error.to_string()),
        Some(Err(error)) => return Err(error),
        Some(Ok(_)) | None => None,
    };
    match &in_use {
        Some(in_use) => checks.push(("data folder", Ok(in_use.clone()))),
        None => checks.push(("data folder", fine(check_folder(settings).await))),
    }
    checks.push(("disk space", check_free_space(settings).await));
    match stores::database_files(settings) {
        files if files.is_empty() => {
            checks.push(("database", fine(check_database(settings).await)));
        }
        files => checks.push(("database", check_database_files(files).await)),
    }
    if in_use.is_none() || settings.s3().is_some() {
        checks.push(("blob store", fine(check_blobs(settings).await)));
    }
    checks.push(("node", check_nodes(settings).await));
    let mut failed = Vec::new();
    let mut rows = Vec::new();
    for (what, checked) in checks {
        let text = checked.unwrap_or_else(|error| {
            let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
            failed.push(what);
            format!("failed: {}{hint}", output::brief(&logmill_io::error_chain(&error)))
        });
        rows.push(vec![what.to_owned(), text]);
    }
    output::table(&rows)?;
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Error::PreflightFailed { what: failed.join(", ") }),
    }
}

/// Reads all SQLite files completely; names those that exist.
async fn check_database_files(files: Vec<PathBuf>) -> Result<String> {
    let mut existing = Vec::new();
    let mut broken = Vec::new();
    for file in files {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
        let exists = file.metadata().is_ok_and(|found| found.len() > 0);
        let checked = logmill_io::compute(move || check_file(&file)).await;
        match checked {
            Ok(()) => existing.extend(name.filter(|_| exists)),
            Err(error) => broken.push(error),
        }
    }
    match broken.len() {
        0 if existing.is_empty() => Ok("fine: none exists yet; a start creates them".to_owned()),
        0 => Ok(format!("fine: {}", existing.join(", "))),
        1 => Err(broken.remove(0).into()),
        _ => Err(Error::BrokenDatabases { databases: broken }),
    }
}

/// Checks that the nodes of every followed chain answer and serve the right chain; describes them.
async fn check_nodes(settings: &Settings) -> Result<String> {
    let followed = settings.followed();
    if followed.is_empty() {
        return Ok("not set (chain.rpc_urls): no chain is followed".to_owned());
    }
    let clock = SystemClock::shared();
    let requests = followed.iter().map(|chain| chains::identify(chain, &clock, chain.chain.id()));
    let mut descriptions = Vec::new();
    for (chain, identified) in followed.iter().zip(futures::future::join_all(requests).await) {
        let (_, info) = identified.map_err(|source| Error::Preflight {
            setting: "chain.rpc_urls",
            what: match chain.chain.id() {
                Some(id) => format!("no node of chain {id} can be used"),
                None => "no node can be used".to_owned(),
            },
            hint: "check that a node runs at this address and serves the chain of chain.id",
            source: Box::new(source),
        })?;
        descriptions.push(format!("chain {}, {}", info.chain_id, info.client));
    }
    Ok(descriptions.join("; "))
}
