//! The OpenAPI document of everything that is served, generated from the same declarations as the routes.
//!
//! Guarantees: it contains every served path, parameter and field, and nothing else. Leaves to others: the parts
//! ([`super::api`], [`super::metering`], [`super::server_routes`]), and the file `docs/openapi.json`, which a test
//! compares with it.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{api, metering, server_routes};

const ABOUT: &str = "Data that Logmill derives from a chain: transactions, accounts, tokens, collections, pools, \
    stake and fees, of final blocks and of the tip together. Lists are read page by page: pass `next` of a page as \
    `cursor` until it is null; a page may be shorter than `limit`. Amounts are strings in the smallest unit, with \
    `decimals` beside them. `asOf` describes the blocks that an answer is based on.";

/// The OpenAPI document.
pub fn document() -> &'static str {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| format!("{:#}\n", assemble()));
    &DOCUMENT
}

/// Short description of the service, served at `/` as JSON.
pub(super) fn about() -> Value {
    let document = assemble();
    let paths = document["paths"].as_object().map(|paths| paths.keys().collect::<Vec<_>>());
    json!({
        "service": "logmill",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "Indexes chains, derives tables, meters usage and serves all of it.",
        "openapi": "/openapi.json",
        "paths": paths,
    })
}

fn assemble() -> Value {
    let (mut paths, mut schemas) = api::openapi::paths();
    paths.extend(metering::openapi::paths());
    schemas.extend(metering::openapi::schemas());
    paths.extend(server_routes::paths());
    schemas.extend(server_routes::schemas());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Logmill",
            "description": ABOUT,
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "the server that serves this document"}],
        "paths": paths,
        "components": {
            "parameters": api::openapi::shared_parameters(),
            "responses": api::openapi::failures(),
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-apikey"},
            },
        },
        // Without keys, every client on this machine has access.
        "security": [{"bearer": []}, {"key": []}, {}],
    })
}
