//! How far a chain is: its heads, what is stored, and what is derived of it.
//!
//! Guarantees: checkpoints are those that readers see, whichever process derives. Leaves to others: why something is
//! behind, which `/status` tells operators.

use std::ops::Range;

use logmill_chain::BlockRef;
use logmill_pipeline::derive::Standing;
use serde_json::{Value as Json, json};

use super::call::{Call, Reply};
use super::data::{RANGE, ranges};
use super::endpoint::{Endpoint, Shape};
use super::error::ApiResult;
use super::record::{Form, Object, Record, bytes, computed};

static HEAD: Record = Record {
    name: "Head",
    about: "A block that is an end of something.",
    base: None,
    fields: &[
        computed("number", Form::Number, "its number"),
        computed("hash", Form::Bytes, "its hash"),
        computed("timestamp", Form::Number, "seconds since 1970"),
    ],
};

static CHECKPOINT: Record = Record {
    name: "Checkpoint",
    about: "How far a processor is.",
    base: None,
    fields: &[
        computed("processor", Form::Text, "its name"),
        computed("generation", Form::Number, "which of its tables serve"),
        computed(
            "covered",
            Form::List(&Form::Object(&RANGE)),
            "its final blocks, the newest ranges",
        ),
        computed("ranges", Form::Number, "how many ranges there are in all"),
        computed("tip", Form::Number, "its newest block, if that is not final").or_null(),
        computed("missing", Form::Number, "how many stored final blocks it has not derived"),
        computed(
            "complete",
            Form::Flag,
            "false while stored blocks were replaced and its tables still hold rows of the old ones",
        ),
        computed("reason", Form::Text, "why `complete` is false").or_null(),
    ],
};

static STATUS: Record = Record {
    name: "Status",
    about: "How far a chain is.",
    base: None,
    fields: &[
        computed("chainId", Form::Number, "the chain's id"),
        computed("head", Form::Object(&HEAD), "the newest block").or_null(),
        computed("safe", Form::Object(&HEAD), "the newest that will hardly be replaced").or_null(),
        computed("finalized", Form::Object(&HEAD), "the newest final block").or_null(),
        computed("complete", Form::Flag, "whether all blocks from the first on are stored"),
        computed("checkpoints", Form::List(&Form::Object(&CHECKPOINT)), "what is derived"),
    ],
};

/// The paths of this file.
pub(super) static ENDPOINTS: &[Endpoint] = &[Endpoint {
    id: "status",
    path: "/status",
    summary: "How far the chain is, and what is derived of it.",
    needs: &[],
    uses: &[],
    params: &[],
    shape: Shape::One(&STATUS),
    run: |call| Box::pin(status(call)),
}];

async fn status(call: &Call) -> ApiResult<Reply> {
    let chain = &call.served.chain;
    let last = chain.index().last_replacement();
    let standings = match &call.served.reader {
        Some(reader) => reader.standings(&[]).await?,
        None => Vec::new(),
    };
    let stored = chain.index().coverage();
    let checkpoints: Vec<Json> =
        standings.iter().map(|one| checkpoint(one, &stored, last)).collect();
    let view = chain.view().await?;
    Ok(Reply::One(Object::from_iter([
        ("chainId".to_owned(), chain.chain_id().into()),
        ("head".to_owned(), head(view.head())),
        ("safe".to_owned(), head(view.safe())),
        ("finalized".to_owned(), head(view.finalized())),
        ("complete".to_owned(), view.is_complete().into()),
        ("checkpoints".to_owned(), checkpoints.into()),
    ])))
}

fn head(at: Option<BlockRef>) -> Json {
    at.map_or(Json::Null, |at| {
        json!({"number": at.number, "hash": bytes(at.hash.as_slice()), "timestamp": at.timestamp})
    })
}

fn checkpoint(standing: &Standing, stored: &[Range<u64>], last_replacement: u64) -> Json {
    let reason = standing.stale(last_replacement);
    let done: Vec<Range<u64>> = standing.done.ranges().collect();
    let gaps = stored.iter().flat_map(|range| standing.done.gaps(range));
    json!({
        "processor": standing.processor,
        "generation": standing.generation,
        "covered": ranges(&done),
        "ranges": done.len(),
        "tip": standing.tip.last().map(|(number, _)| number),
        "missing": gaps.map(|gap| gap.end - gap.start).sum::<u64>(),
        "complete": reason.is_none(),
        "reason": reason,
    })
}
