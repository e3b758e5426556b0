//! `Endpoint`: the declaration of a path of the read API: the processors it needs, its parameters, its response, its
//! handler.
//!
//! Guarantees: routes, parameter checks and `docs/openapi.json` come from the same declaration. Leaves to others: the
//! declarations, which are next to their handlers.

use futures::future::BoxFuture;
use logmill_pipeline::processors::ProcessorName;

use super::error::ApiResult;
use super::param::Param;
use super::record::Record;
pub(super) use call::{Call, LIMIT_DEFAULT, LIMIT_MAX, Reply};

pub(super) mod call;

/// A path of the read API, below `/api/v1/{chain}`.
pub(super) struct Endpoint {
    /// Name; part of every cursor.
    pub(super) id: &'static str,
    pub(super) path: &'static str,
    /// One-line description.
    pub(super) summary: &'static str,
    /// Processors without whose tables there is no answer; they determine its coverage.
    pub(super) needs: &'static [ProcessorName],
    /// Processors whose tables add to the answer where they exist.
    pub(super) uses: &'static [ProcessorName],
    /// Parameters of path and query.
    pub(super) params: &'static [Param],
    pub(super) shape: Shape,
    pub(super) run: Handler,
}

/// The handler.
pub(super) type Handler = for<'a> fn(&'a Call) -> BoxFuture<'a, ApiResult<Reply>>;

#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    One(&'static Record),
    Page(&'static Record),
}

impl Endpoint {
    /// All processors whose tables it reads.
    pub(super) fn processors(&self) -> Vec<ProcessorName> {
        self.needs.iter().chain(self.uses).copied().collect()
    }

    pub(super) fn is_in_path(&self, name: &str) -> bool {
        self.path.split('/').any(|part| part.strip_prefix('{') == Some(&format!("{name}}}")))
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("path", &self.path).finish_non_exhaustive()
    }
}
