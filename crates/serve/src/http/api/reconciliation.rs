//! Results of comparing the tables with their contracts.
//!
//! Guarantees: every stored comparison is on exactly one page. Leaves to others: comparing
//! (`nft_ownership_reconciler`).

use logmill_pipeline::async_workers::reconcile::{
    Comparison, ComparisonPosition, KINDS, NAME, Verdict,
};
use logmill_pipeline::derive::Kind;
use logmill_pipeline::processors::ProcessorName;
use serde_json::{Value as Json, json};

use super::endpoint::{Call, Endpoint, Reply, Shape};
use super::error::{ApiError, ApiResult};
use super::param::{ParamKind, optional};
use super::position::{OrderValue, Position};
use super::record::{Form, Object, Record, address, computed};

static COMPARISON: Record = Record {
    name: "Comparison",
    about: "A comparison of the tables with the answer of a contract.",
    base: None,
    fields: &[
        computed("blockNumber", Form::Number, "the block at which the contract was called"),
        computed("kind", Form::Text, "`ft_balance`, `nft_balance` or `nft_owner`"),
        computed("contract", Form::Address, "the contract that was called"),
        computed("itemId", Form::Amount, "id of the item; null for the balance of a fungible token")
            .or_null(),
        computed("account", Form::Address, "the holder; null for an owner").or_null(),
        computed(
            "sinceBlock",
            Form::Number,
            "if the tables do not start at the first block: the block before the counted transfers, at which \
             the contract was called too",
        )
        .or_null(),
        computed(
            "expected",
            Form::Text,
            "the expected answer: an address, or a number in decimal digits; null if unknown",
        )
        .or_null(),
        computed("observed", Form::Text, "the actual answer; null if it cannot be compared")
            .or_null(),
        computed(
            "verdict",
            Form::Text,
            "`agrees`, `differs`, `reverts`, `unclear`, or `no_state` if no node still has the state of the block",
        ),
    ],
};

pub(super) static ENDPOINTS: &[Endpoint] = &[Endpoint {
    id: "reconciliation",
    path: "/reconciliation",
    summary: "Samples of owners and balances, compared with their contracts, newest first.",
    needs: &[ProcessorName::NftOwnership, ProcessorName::FtHoldings, ProcessorName::Token],
    uses: &[],
    params: &[optional("verdict", ParamKind::Verdict, "only comparisons with this verdict")],
    shape: Shape::Page(&COMPARISON),
    run: |call| Box::pin(reconciliation(call)),
}];

/// Column kinds of a position: block, number of the kind, subject.
const PLACES: [Kind; 3] = [Kind::Int, Kind::Int, Kind::Bytes];

async fn reconciliation(call: &Call) -> ApiResult<Reply> {
    let behind = call.position(&PLACES)?.map(|position| place(&position)).transpose()?;
    let verdict = Verdict::ALL.into_iter().find(|one| call.opt_word("verdict") == Some(one.name()));
    let limit = call.limit();
    let found = call.data()?.comparisons(verdict, behind.as_ref(), limit + 1).await?;
    // The table exists once the worker has run.
    let mut found = found.ok_or_else(|| ApiError::not_derived(NAME))?;
    let is_last = found.len() <= limit;
    found.truncate(limit);
    let next = found.last().filter(|_| !is_last).map(|last| position(&last.position));
    Ok(call.reply(found.iter().map(object).collect(), next))
}

fn object(one: &Comparison) -> Object {
    Object::from_iter([
        ("blockNumber".to_owned(), one.position.block.into()),
        ("kind".to_owned(), one.position.kind.into()),
        ("contract".to_owned(), address(&one.contract)),
        ("itemId".to_owned(), json!(one.item.map(|item| item.to_string()))),
        ("account".to_owned(), one.account.as_ref().map_or(Json::Null, address)),
        ("sinceBlock".to_owned(), one.since.into()),
        ("expected".to_owned(), json!(one.expected)),
        ("observed".to_owned(), json!(one.observed)),
        ("verdict".to_owned(), json!(one.verdict)),
    ])
}

fn position(at: &ComparisonPosition) -> Position {
    let kind = KINDS.iter().position(|kind| *kind == at.kind).unwrap_or_default();
    Position(vec![
        OrderValue::Int(i64::try_from(at.block).unwrap_or(i64::MAX)),
        OrderValue::Int(i64::try_from(kind).unwrap_or_default()),
        OrderValue::Bytes(at.subject.clone()),
    ])
}

fn place(position: &Position) -> ApiResult<ComparisonPosition> {
    let [OrderValue::Int(block), OrderValue::Int(kind), OrderValue::Bytes(subject)] =
        position.0.as_slice()
    else {
        return Err(ApiError::cursor());
    };
    let kind = usize::try_from(*kind).ok().and_then(|kind| KINDS.get(kind).copied());
    Ok(ComparisonPosition {
        block: u64::try_from(*block).map_err(|_| ApiError::cursor())?,
        kind: kind.ok_or_else(ApiError::cursor)?,
        subject: subject.clone(),
    })
}
