//! Progress of a chain: its heads, its stored blocks, and its derived tables.
//!
//! Guarantees: checkpoints are those that readers see, whichever process derives. Leaves to others: why something is
//! behind, which `/status` shows to operators.

use std::ops::Range;

use finalized_log_index::ReplacementPosition;
use logmill_chain::BlockRef;
use logmill_pipeline::derive::GenerationProgress;
use serde_json::{Value as Json, json};

use super::data::{RANGE, ranges};
use super::endpoint::{Call, Endpoint, Reply, Shape};
use super::error::ApiResult;
use super::record::{Form, Object, Record, bytes, computed};

static HEAD: Record = Record {
    name: "Head",
    about: "A head block.",
    base: None,
    fields: &[
        computed("number", Form::Number, "block number"),
        computed("hash", Form::Bytes, "block hash"),
        computed("timestamp", Form::Number, "seconds since 1970"),
    ],
};

static CHECKPOINT: Record = Record {
    name: "Checkpoint",
    about: "Progress of a processor.",
    base: None,
    fields: &[
        computed("processor", Form::Text, "name of the processor"),
        computed(
            "generation",
            Form::Number,
            "number of the generation of its tables that is served",
        ),
        computed(
            "covered",
            Form::List(&Form::Object(&RANGE)),
            "derived final blocks, the newest ranges",
        ),
        computed("ranges", Form::Number, "the total number of ranges"),
        computed("tip", Form::Number, "the newest derived block, if it is not final").or_null(),
        computed("missing", Form::Number, "number of stored final blocks that are not derived yet"),
        computed(
            "complete",
            Form::Flag,
            "false while its tables hold rows of replaced blocks or of changed settings",
        ),
        computed("reason", Form::Text, "why `complete` is false").or_null(),
    ],
};

static STATUS: Record = Record {
    name: "Status",
    about: "Progress of a chain.",
    base: None,
    fields: &[
        computed("chainId", Form::Number, "chain id"),
        computed("head", Form::Object(&HEAD), "the newest block").or_null(),
        computed("safe", Form::Object(&HEAD), "the newest safe block").or_null(),
        computed("finalized", Form::Object(&HEAD), "the newest final block").or_null(),
        computed("complete", Form::Flag, "whether all blocks from the first one on are stored"),
        computed(
            "checkpoints",
            Form::List(&Form::Object(&CHECKPOINT)),
            "progress of each processor",
        ),
    ],
};

pub(super) static ENDPOINTS: &[Endpoint] = &[Endpoint {
    id: "status",
    path: "/status",
    summary: "Progress of the chain and of its derived tables.",
    needs: &[],
    uses: &[],
    params: &[],
    shape: Shape::One(&STATUS),
    run: |call| Box::pin(status(call)),
}];

async fn status(call: &Call) -> ApiResult<Reply> {
    let chain = &call.served.chain;
    let last = chain.index().replacement_position();
    let standings = match &call.served.reader {
        Some(reader) => reader.progress(&[]).await?,
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

fn checkpoint(
    standing: &GenerationProgress,
    stored: &[Range<u64>],
    last_replacement: ReplacementPosition,
) -> Json {
    let reason = standing.incomplete(last_replacement);
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
