//! The query parameters that several metering paths share.
//!
//! Guarantees: none beyond their declarations. Leaves to others: reading them ([`super::params`]).

use crate::http::route::{Param, ParamType, param, required};

const CUSTOMER: Param = param("customerId", "customer; all customers by default");
const TYPE: Param = param("eventType", "event type; all types by default");
pub(super) const FROM: Param =
    param("from", "start of the time range: RFC 3339, or milliseconds since 1970");
pub(super) const TO: Param = param("to", "end of the time range, exclusive");
pub(super) const LIMIT: Param = Param {
    kind: ParamType::PageSize,
    ..param("limit", "maximum number of entries of the page: clamped to 1 to 1000, 100 by default")
};
pub(super) const CURSOR: Param = param("cursor", "`x-next-cursor` of the previous page");

pub(super) const EVENT_PARAMS: &[Param] = &[CUSTOMER, TYPE, FROM, TO, LIMIT, CURSOR];
pub(super) const AGGREGATION_PARAMS: &[Param] = &[
    CUSTOMER,
    param("period", "kind of period, such as daily; all kinds by default"),
    FROM,
    TO,
    LIMIT,
    CURSOR,
];
pub(super) const BEHIND_PARAMS: &[Param] = &[LIMIT, CURSOR];
pub(super) const LOOKUP_PARAMS: &[Param] = &[
    param("source", "source of the event; by default that of the caller's key"),
    required("id", "id of the event"),
];
pub(super) const STREAM_PARAMS: &[Param] = &[required("customerId", "customer"), TYPE];
