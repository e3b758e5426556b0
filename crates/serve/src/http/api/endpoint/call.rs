//! `Call`: one parsed request (chain, parameters, page) and the answer to it.
//!
//! Guarantees: every parameter is declared and occurs at most once. Leaves to others: answering.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::{Address, B256};
use bytes::Bytes;
use logmill_io::Amount;
use logmill_pipeline::derive::Kind;
use logmill_pipeline::processors::ProcessorName;
use serde_json::Value as Json;

use super::{Endpoint, Shape};
use crate::http::api::data::Data;
use crate::http::api::error::{ApiError, ApiResult};
use crate::http::api::list::{List, RowQuery};
use crate::http::api::param::ParamValue;
use crate::http::api::position::Position;
use crate::http::api::record::Object;
use crate::http::fees;
use crate::rpc::ServedChain;

/// Default and maximum number of items of a page.
pub(in crate::http::api) const LIMIT_DEFAULT: usize = 20;
pub(in crate::http::api) const LIMIT_MAX: usize = 100;

#[derive(Debug)]
pub(in crate::http::api) struct Call {
    pub(in crate::http::api) served: Arc<ServedChain>,
    pub(in crate::http::api) endpoint: &'static Endpoint,
    data: Option<Data>,
    values: BTreeMap<&'static str, ParamValue>,
    limit: usize,
    cursor: Option<String>,
}

#[derive(Clone, Debug)]
pub(in crate::http::api) enum Reply {
    One(Object),
    Page { items: Vec<Object>, next: Option<String> },
}

impl Call {
    pub(in crate::http::api) fn read(
        served: Arc<ServedChain>,
        endpoint: &'static Endpoint,
        path: &BTreeMap<String, String>,
        query: Vec<(String, String)>,
    ) -> ApiResult<Self> {
        let mut call = Self {
            served,
            endpoint,
            data: None,
            values: BTreeMap::new(),
            limit: LIMIT_DEFAULT,
            cursor: None,
        };
        let (mut query_values, is_page) =
            (BTreeMap::new(), matches!(endpoint.shape, Shape::Page(_)));
        for (name, text) in query {
            let is_paging = is_page && ["limit", "cursor"].contains(&name.as_str());
            let is_declared = endpoint.params.iter().any(|param| param.name == name);
            if !is_paging && (!is_declared || path.contains_key(&name)) {
                return Err(ApiError::parameter(&shown(&name), "unknown parameter"));
            }
            if query_values.contains_key(&name) {
                return Err(ApiError::parameter(&name, "given more than once"));
            }
            query_values.insert(name, text);
        }
        for param in endpoint.params {
            match path.get(param.name).or_else(|| query_values.get(param.name)) {
                Some(text) => drop(call.values.insert(param.name, param.read(text)?)),
                None if param.is_required => {
                    return Err(ApiError::parameter(param.name, "this parameter is required"));
                }
                None => {}
            }
        }
        if let Some(text) = query_values.get("limit") {
            call.limit = limit(text)?;
        }
        call.cursor = query_values.remove("cursor");
        Ok(call)
    }

    /// Reads the state of the derived tables.
    pub(in crate::http::api) async fn load_data(&mut self) -> ApiResult<()> {
        let Some(reader) = self.served.reader.clone() else {
            return match self.endpoint.needs.first() {
                Some(processor) => Err(ApiError::not_derived(processor.as_str())),
                None => Ok(()),
            };
        };
        let processors = self.endpoint.processors();
        if processors.is_empty() {
            return Ok(());
        }
        let last = self.served.chain.index().replacement_position();
        let mut data = Data::read(reader.clone(), &processors, last).await?;
        // The contract of fees may be an assumption.
        if self.endpoint.needs.contains(&ProcessorName::Fees)
            && let Some(assumed) = self.served.status.assumed_fees()
            && fees::is_empty(&reader).await?
        {
            data.assumed = Some(assumed);
        }
        for processor in self.endpoint.needs {
            data.covered(*processor)?;
        }
        self.data = Some(data);
        Ok(())
    }

    /// The derived tables; an error if there are none.
    pub(in crate::http::api) fn data(&self) -> ApiResult<&Data> {
        self.data.as_ref().ok_or_else(|| {
            let first = self.endpoint.processors().first().map_or("", |one| one.as_str());
            ApiError::not_derived(first)
        })
    }

    /// The derived tables, if there are any.
    pub(in crate::http::api) fn some_data(&self) -> Option<&Data> {
        self.data.as_ref()
    }

    /// Requested number of items.
    pub(in crate::http::api) fn limit(&self) -> usize {
        self.limit
    }

    /// Position after which the page begins, in an order of these kinds; `None` for the first page.
    pub(in crate::http::api) fn position(&self, kinds: &[Kind]) -> ApiResult<Option<Position>> {
        let cursor = self.cursor.as_deref();
        cursor.map(|cursor| Position::of_cursor(self.endpoint.id, kinds, cursor)).transpose()
    }

    /// A page of a list: the rows that match `query` and pass the filter.
    pub(in crate::http::api) async fn page_of(
        &self,
        list: &List,
        query: &RowQuery,
        keep: impl Fn(&Object) -> bool + Send,
    ) -> ApiResult<(Vec<Object>, Option<Position>)> {
        let from = self.position(&list.kinds())?.unwrap_or_else(|| list.start());
        let found = list.scan(self.data()?, query, from, self.limit + 1, keep).await?;
        Ok(found.page(self.limit))
    }

    pub(in crate::http::api) fn reply(&self, items: Vec<Object>, next: Option<Position>) -> Reply {
        Reply::Page { items, next: next.map(|next| next.cursor(self.endpoint.id)) }
    }

    fn get(&self, name: &str) -> Option<&ParamValue> {
        self.values.get(name)
    }

    /// A required address.
    pub(in crate::http::api) fn address(&self, name: &str) -> ApiResult<Address> {
        self.opt_address(name).ok_or_else(|| undeclared(name))
    }

    pub(in crate::http::api) fn opt_address(&self, name: &str) -> Option<Address> {
        match self.get(name) {
            Some(ParamValue::Address(address)) => Some(*address),
            _ => None,
        }
    }

    pub(in crate::http::api) fn opt_hash(&self, name: &str) -> Option<B256> {
        match self.get(name) {
            Some(ParamValue::Hash(hash)) => Some(*hash),
            _ => None,
        }
    }

    pub(in crate::http::api) fn opt_number(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(ParamValue::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// One of a fixed set of words.
    pub(in crate::http::api) fn opt_word(&self, name: &str) -> Option<&'static str> {
        match self.get(name) {
            Some(ParamValue::Word(word)) => Some(word),
            _ => None,
        }
    }

    /// A required amount.
    pub(in crate::http::api) fn amount(&self, name: &str) -> ApiResult<Amount> {
        match self.get(name) {
            Some(ParamValue::Amount(amount)) => Ok(*amount),
            _ => Err(undeclared(name)),
        }
    }

    /// Required bytes.
    pub(in crate::http::api) fn bytes(&self, name: &str) -> ApiResult<Bytes> {
        match self.get(name) {
            Some(ParamValue::Bytes(bytes)) => Ok(bytes.clone()),
            _ => Err(undeclared(name)),
        }
    }

    /// A required number.
    pub(in crate::http::api) fn number(&self, name: &str) -> ApiResult<u64> {
        self.opt_number(name).ok_or_else(|| undeclared(name))
    }

    /// A required hash.
    pub(in crate::http::api) fn hash(&self, name: &str) -> ApiResult<B256> {
        self.opt_hash(name).ok_or_else(|| undeclared(name))
    }
}

impl Reply {
    /// Renders it as JSON with its `asOf`.
    pub(in crate::http::api) fn json(self, as_of: Json) -> Json {
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
    limit.ok_or_else(|| ApiError::parameter("limit", "must be a number from 1 to 100"))
}

/// A name chosen by a client, cut and escaped so that it can be repeated in an error.
fn shown(name: &str) -> String {
    name.chars().take(32).flat_map(char::escape_debug).collect()
}

fn undeclared(name: &str) -> ApiError {
    ApiError::internal(&format!("the parameter {name} is not declared with this type"))
}
