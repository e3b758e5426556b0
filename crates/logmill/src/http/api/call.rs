//! `Call`: one request, read: which chain, which parameters, which page; and the answer to it.
//!
//! Guarantees: every parameter is declared and was given at most once. Leaves to others: answering.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::{Address, B256};
use bytes::Bytes;
use logmill_io::Amount;
use logmill_pipeline::derive::Kind;
use serde_json::Value as Json;

use super::data::Data;
use super::endpoint::{Endpoint, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{Ask, List};
use super::param::Given;
use super::position::Position;
use super::record::Object;
use crate::rpc::Served;

/// How many items a page has if nothing is said, and at most.
pub(super) const LIMIT_DEFAULT: usize = 20;
pub(super) const LIMIT_MAX: usize = 100;

/// One request.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) served: Arc<Served>,
    pub(super) endpoint: &'static Endpoint,
    data: Option<Data>,
    given: BTreeMap<&'static str, Given>,
    limit: usize,
    cursor: Option<String>,
}

/// What a request is answered with.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    One(Object),
    Page { items: Vec<Object>, next: Option<String> },
}

impl Call {
    /// Reads a request.
    pub(super) fn read(
        served: Arc<Served>,
        endpoint: &'static Endpoint,
        path: &BTreeMap<String, String>,
        query: Vec<(String, String)>,
    ) -> ApiResult<Self> {
        let mut call = Self {
            served,
            endpoint,
            data: None,
            given: BTreeMap::new(),
            limit: LIMIT_DEFAULT,
            cursor: None,
        };
        let (mut asked, is_page) = (BTreeMap::new(), matches!(endpoint.shape, Shape::Page(_)));
        for (name, text) in query {
            let is_paging = is_page && ["limit", "cursor"].contains(&name.as_str());
            let is_declared = endpoint.params.iter().any(|param| param.name == name);
            if !is_paging && (!is_declared || path.contains_key(&name)) {
                return Err(ApiError::parameter(&shown(&name), "there is no such parameter here"));
            }
            if asked.contains_key(&name) {
                return Err(ApiError::parameter(&name, "it is given twice"));
            }
            asked.insert(name, text);
        }
        for param in endpoint.params {
            match path.get(param.name).or_else(|| asked.get(param.name)) {
                Some(text) => drop(call.given.insert(param.name, param.read(text)?)),
                None if param.is_required => {
                    return Err(ApiError::parameter(param.name, "it is missing"));
                }
                None => {}
            }
        }
        if let Some(text) = asked.get("limit") {
            call.limit = limit(text)?;
        }
        call.cursor = asked.remove("cursor");
        Ok(call)
    }

    /// Looks at what is derived.
    pub(super) async fn look(&mut self) -> ApiResult<()> {
        let Some(reader) = self.served.reader.clone() else {
            return match self.endpoint.needs.first() {
                Some(processor) => Err(ApiError::not_derived(processor)),
                None => Ok(()),
            };
        };
        let processors = self.endpoint.processors();
        if processors.is_empty() {
            return Ok(());
        }
        let last = self.served.chain.index().last_replacement();
        let data = Data::read(reader, &processors, last).await?;
        for processor in self.endpoint.needs {
            data.covered(processor)?;
        }
        self.data = Some(data);
        Ok(())
    }

    /// What is derived; an error if nothing is.
    pub(super) fn data(&self) -> ApiResult<&Data> {
        let first = self.endpoint.processors().first().copied().unwrap_or_default();
        self.data.as_ref().ok_or_else(|| ApiError::not_derived(first))
    }

    /// What is derived, if anything is.
    pub(super) fn some_data(&self) -> Option<&Data> {
        self.data.as_ref()
    }

    /// How many items are asked for.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Behind which place the page begins, in an order of these kinds; none for the beginning.
    pub(super) fn position(&self, kinds: &[Kind]) -> ApiResult<Option<Position>> {
        let cursor = self.cursor.as_deref();
        cursor.map(|cursor| Position::of_cursor(self.endpoint.id, kinds, cursor)).transpose()
    }

    /// A page of a list: what is found by `ask`, and kept.
    pub(super) async fn stretch(
        &self,
        list: &List,
        ask: &Ask,
        keep: impl Fn(&Object) -> bool + Send,
    ) -> ApiResult<(Vec<Object>, Option<Position>)> {
        let from = self.position(&list.kinds())?.unwrap_or_else(|| list.start());
        let found = list.stretch(self.data()?, ask, from, self.limit + 1, keep).await?;
        Ok(found.page(self.limit))
    }

    /// The reply with these items.
    pub(super) fn reply(&self, items: Vec<Object>, next: Option<Position>) -> Reply {
        Reply::Page { items, next: next.map(|next| next.cursor(self.endpoint.id)) }
    }

    fn get(&self, name: &str) -> Option<&Given> {
        self.given.get(name)
    }

    /// An address that must be there.
    pub(super) fn address(&self, name: &str) -> ApiResult<Address> {
        self.opt_address(name).ok_or_else(|| undeclared(name))
    }

    /// An address, if there is one.
    pub(super) fn opt_address(&self, name: &str) -> Option<Address> {
        match self.get(name) {
            Some(Given::Address(address)) => Some(*address),
            _ => None,
        }
    }

    /// A hash, if there is one.
    pub(super) fn opt_hash(&self, name: &str) -> Option<B256> {
        match self.get(name) {
            Some(Given::Hash(hash)) => Some(*hash),
            _ => None,
        }
    }

    /// A number, if there is one.
    pub(super) fn opt_number(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(Given::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// An amount that must be there.
    pub(super) fn amount(&self, name: &str) -> ApiResult<Amount> {
        match self.get(name) {
            Some(Given::Amount(amount)) => Ok(*amount),
            _ => Err(undeclared(name)),
        }
    }

    /// Bytes that must be there.
    pub(super) fn bytes(&self, name: &str) -> ApiResult<Bytes> {
        match self.get(name) {
            Some(Given::Bytes(bytes)) => Ok(bytes.clone()),
            _ => Err(undeclared(name)),
        }
    }

    /// A number that must be there.
    pub(super) fn number(&self, name: &str) -> ApiResult<u64> {
        self.opt_number(name).ok_or_else(|| undeclared(name))
    }

    /// A hash that must be there.
    pub(super) fn hash(&self, name: &str) -> ApiResult<B256> {
        self.opt_hash(name).ok_or_else(|| undeclared(name))
    }
}

impl Reply {
    /// As JSON, with what it is based on.
    pub(super) fn json(self, as_of: Json) -> Json {
        let mut object = match self {
            Self::One(object) => object,
            Self::Page { items, next } => {
                let items = items.into_iter().map(Json::Object).collect();
                Object::from_iter([
                    ("items".to_owned(), Json::Array(items)),
                    ("next".to_owned(), next.into()),
                ])
            }
        };
        object.insert("asOf".to_owned(), as_of);
        Json::Object(object)
    }
}

fn limit(text: &str) -> ApiResult<usize> {
    let limit = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let limit = limit.and_then(|text| text.parse::<usize>().ok());
    let limit = limit.filter(|limit| (1..=LIMIT_MAX).contains(limit));
    limit.ok_or_else(|| ApiError::parameter("limit", "it is a number from 1 to 100"))
}

/// A name that a client thought of, short enough to be said back.
fn shown(name: &str) -> String {
    name.chars().take(32).flat_map(char::escape_debug).collect()
}

fn undeclared(name: &str) -> ApiError {
    ApiError::internal(&format!("the parameter {name} is not declared so"))
}
