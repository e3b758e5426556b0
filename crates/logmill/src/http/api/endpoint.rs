//! `Endpoint`: a path of the read API, declared: what it needs, takes and gives, and who answers.
//!
//! Guarantees: routes, checks of parameters and `docs/openapi.json` come from the same declaration. Leaves to others:
//! the declarations, which are beside those who answer.

use futures::future::BoxFuture;

use super::call::{Call, Reply};
use super::error::ApiResult;
use super::param::Param;
use super::record::Record;

/// A path of the read API, below `/api/v1/{chain}`.
pub(super) struct Endpoint {
    /// Its name; cursors carry it.
    pub(super) id: &'static str,
    pub(super) path: &'static str,
    /// What it answers, in a line.
    pub(super) summary: &'static str,
    /// Without what these processors derive there is no answer; its coverage is theirs.
    pub(super) needs: &'static [&'static str],
    /// What these derive is added where it is there.
    pub(super) uses: &'static [&'static str],
    /// Its parameters, those of the path and of the query.
    pub(super) params: &'static [Param],
    pub(super) shape: Shape,
    pub(super) run: Run,
}

/// Who answers.
pub(super) type Run = for<'a> fn(&'a Call) -> BoxFuture<'a, ApiResult<Reply>>;

/// What an answer looks like.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    One(&'static Record),
    Page(&'static Record),
}

impl Endpoint {
    /// All whose tables it reads.
    pub(super) fn processors(&self) -> Vec<&'static str> {
        self.needs.iter().chain(self.uses).copied().collect()
    }

    /// Whether a parameter is in its path.
    pub(super) fn is_in_path(&self, name: &str) -> bool {
        self.path.split('/').any(|part| part.strip_prefix('{') == Some(&format!("{name}}}")))
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("path", &self.path).finish_non_exhaustive()
    }
}
