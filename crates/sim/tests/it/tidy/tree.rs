//! The files of the tree: those that git tracks or would add or, without git, everything but build output.
//!
//! Guarantees: sorted, relative to the workspace, with `/` as separator; only files that exist. Leaves to others:
//! their content.

use std::fs;
use std::path::Path;
use std::process::Command;

use logmill_sim::workspace_root;

/// Folders of build output, for trees without git; the same as in `.gitignore`.
const OUTPUT_FOLDERS: [&str; 4] = [".git", ".tools", "node_modules", "target"];

pub(super) struct TextFile {
    /// Relative to the workspace.
    pub(super) path: String,
    pub(super) text: String,
}

impl TextFile {
    /// Whether the file contains only tests.
    pub(super) fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.split('/').any(|part| part == "tests")
    }
}

pub(super) fn paths() -> Vec<String> {
    let root = workspace_root();
    let mut paths = git_paths(&root).unwrap_or_else(|| {
        let mut found = Vec::new();
        walk(&root, "", &mut found);
        found
    });
    paths.retain(|path| root.join(path).is_file());
    paths.sort();
    paths.dedup();
    assert!(paths.iter().any(|path| path == "Cargo.toml"), "the tree was not found");
    paths
}

pub(super) fn text_files() -> Vec<TextFile> {
    let root = workspace_root();
    let read = |path: String| {
        let text = String::from_utf8(fs::read(root.join(&path)).ok()?).ok()?;
        Some(TextFile { path, text })
    };
    paths().into_iter().filter_map(read).collect()
}

pub(super) fn rust_files() -> Vec<TextFile> {
    let mut files = text_files();
    files.retain(|file| file.path.ends_with(".rs"));
    files
}

/// The text of a file; `None` if there is no such file.
pub(super) fn get_text(path: &str) -> Option<String> {
    fs::read_to_string(workspace_root().join(path)).ok()
}

fn git_paths(root: &Path) -> Option<Vec<String>> {
    // A workspace unpacked inside another checkout does not belong to that checkout.
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()?;
    let listed = String::from_utf8(output.stdout).ok()?;
    let paths = listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned);
    output.status.success().then(|| paths.collect())
}

fn walk(root: &Path, folder: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(root.join(folder)).expect("the folder can be listed") {
        let entry = entry.expect("the folder can be listed");
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().expect("the file's kind is known");
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if kind.is_dir() && !OUTPUT_FOLDERS.contains(&name.as_str()) {
            walk(root, &path, found);
        } else if kind.is_file() {
            found.push(path);
        }
    }
}

#[test]
fn without_git_the_same_sources_are_found() {
    let root = workspace_root();
    let Some(by_git) = git_paths(&root) else { return logmill_sim::skip("not a git checkout") };
    let mut walked = Vec::new();
    walk(&root, "", &mut walked);
    let source = |path: &&String| path.ends_with(".rs") && root.join(path.as_str()).is_file();
    for path in by_git.iter().filter(source) {
        assert!(walked.contains(path), "{path} is not found without git");
    }
}
