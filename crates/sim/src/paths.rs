//! Locations of the workspace and of the recorded chain data.
//!
//! Guarantees: the results do not depend on the directory from which the test was started. Leaves to others: what to
//! do without the data (see [`crate::skip`]).

use std::env;
use std::path::{Path, PathBuf};

/// Location of the recorded data, relative to the workspace, unless `LOGMILL_TEST_DATA` is set.
const DATA_DEFAULT: &str = "../shared/data";

/// The folder of the workspace's `Cargo.toml`.
pub fn workspace_root() -> PathBuf {
    // The variable at run time takes precedence over that of the build: a build folder may have been copied.
    let package = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = package.ancestors().nth(2).map(Path::to_path_buf);
    root.expect("every crate lives two folders below the workspace")
}

/// The folder of recorded chain data: `LOGMILL_TEST_DATA`, else `../shared/data` beside the workspace. `None` if the
/// default folder does not exist.
///
/// # Panics
///
/// If `LOGMILL_TEST_DATA` is not a folder: a typing error there must not turn tests into skipped ones.
pub fn test_data() -> Option<PathBuf> {
    if let Some(named) = env::var_os("LOGMILL_TEST_DATA").map(PathBuf::from) {
        assert!(named.is_dir(), "LOGMILL_TEST_DATA names no folder: {}", named.display());
        return Some(named);
    }
    Some(workspace_root().join(DATA_DEFAULT)).filter(|folder| folder.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_root_holds_the_workspace_manifest() {
        let manifest = std::fs::read_to_string(workspace_root().join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[workspace]"));
    }
}
