//! `Route`: the declaration of a path: its scope, parameters, responses and handler.
//!
//! Guarantees: routes, parameter checks and the OpenAPI document come from the same declaration. Leaves to others: the
//! declarations ([`super::metering`], [`super::server_routes`]), and the document ([`super::openapi`]).

use std::sync::Arc;

use axum::routing::MethodRouter;

use crate::http::{Scope, ServerState};

pub(super) struct Route {
    /// Operation id in the document.
    pub(super) id: &'static str,
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// Required scope; `None` if no key is needed.
    pub(super) scope: Option<Scope>,
    /// One-line description.
    pub(super) summary: &'static str,
    pub(super) params: &'static [Param],
    /// Request bodies: media type and schema.
    pub(super) bodies: &'static [(&'static str, &'static str)],
    /// Responses, without the errors that all paths of its kind share.
    pub(super) answers: &'static [Answer],
    pub(super) handler: fn() -> MethodRouter<Arc<ServerState>>,
}

impl Route {
    /// Template of a path that is read.
    pub(super) const GET: Self = Self {
        id: "",
        method: "get",
        path: "",
        scope: Some(Scope::Read),
        summary: "",
        params: &[],
        bodies: &[],
        answers: &[],
        handler: MethodRouter::new,
    };
}

/// A response.
pub(super) struct Answer {
    pub(super) status: &'static str,
    /// Media type; empty without a body.
    pub(super) media: &'static str,
    /// Name of the schema; empty if any value of the media type may come.
    pub(super) schema: &'static str,
    /// When it is sent, or what it is.
    pub(super) about: &'static str,
}

/// A response of JSON.
pub(super) const fn json_answer(
    status: &'static str,
    schema: &'static str,
    about: &'static str,
) -> Answer {
    Answer { status, media: JSON, schema, about }
}

/// A response without a body.
pub(super) const fn bodiless(status: &'static str, about: &'static str) -> Answer {
    Answer { status, media: "", schema: "", about }
}

/// Type of a query parameter.
#[derive(Clone, Copy)]
pub(super) enum ParamType {
    Text,
    Integer,
    /// Maximum number of entries of a page of metering.
    PageSize,
}

/// A query parameter.
#[derive(Clone, Copy)]
pub(super) struct Param {
    /// A name that ends with a dot is a prefix and stands for all names that begin with it.
    pub(super) name: &'static str,
    pub(super) kind: ParamType,
    pub(super) is_required: bool,
    pub(super) is_repeated: bool,
    pub(super) about: &'static str,
}

impl Param {
    /// Whether a query name refers to this parameter.
    pub(super) fn is_meant(&self, name: &str) -> bool {
        match self.name.ends_with('.') {
            true => name.len() > self.name.len() && name.starts_with(self.name),
            false => name == self.name,
        }
    }
}

pub(super) const fn param(name: &'static str, about: &'static str) -> Param {
    Param { name, kind: ParamType::Text, is_required: false, is_repeated: false, about }
}

pub(super) const fn required(name: &'static str, about: &'static str) -> Param {
    Param { is_required: true, ..param(name, about) }
}

/// A parameter that may occur several times.
pub(super) const fn repeated(name: &'static str, about: &'static str) -> Param {
    Param { is_repeated: true, ..param(name, about) }
}

/// A whole number.
pub(super) const fn integer(name: &'static str, about: &'static str) -> Param {
    Param { kind: ParamType::Integer, ..param(name, about) }
}

pub(super) const JSON: &str = "application/json";
