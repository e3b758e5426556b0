//! Swaps, pools, and all events of a pool.
//!
//! Any contract may announce a pool and log its id, so every fact is shown with the contract that logged it: the
//! contracts that emit events for a pool, and those that announced it. The tokens of an event are shown only where all
//! announcements of its pool agree.
//!
//! Guarantees: a page reads a bounded number of rows. Leaves to others: which factories to trust, prices.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use logmill_io::{Value, params};
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::defi::{DEFI_EVENTS, DEFI_PAIR_STATS, DEFI_PAIRS, DEFI_RESERVES};
use serde_json::{Value as Json, json};

use super::data::{BLOCK, Data, HASH, LOG_INDEX, TIME, TX_INDEX, padded, places};
use super::endpoint::{Call, Endpoint, LIMIT_MAX, Reply, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{self, Direction, List, RowQuery};
use super::param::{Param, ParamKind, required};
use super::record::{Form, Object, Record, address_in, column, computed};

/// Maximum number of announcements read per pool in a list.
const ANNOUNCEMENTS_MAX: usize = 5;

static EVENT: Record = Record {
    name: "PoolEvent",
    about: "A swap, or a change of liquidity. In and out are from the pool's point of view.",
    base: None,
    fields: &[
        BLOCK,
        LOG_INDEX,
        column("batchIndex", Form::Number, "batch_index", "index within its log"),
        TX_INDEX,
        HASH,
        column("pair", Form::Bytes, "pair_id", "address or id of the pool"),
        column("contract", Form::Address, "contract_address", "the contract that logged it"),
        column(
            "dex",
            Form::Text,
            "dex_key",
            "the kind of exchange, judged by the form of its logs",
        ),
        column("type", Form::Text, "event_type", "`Swap`, `AddLiquidity` or `RemoveLiquidity`"),
        column("maker", Form::Address, "maker", "the sender of the transaction").or_null(),
        column("account", Form::Address, "account", "the account named in the log").or_null(),
        computed("asset0", Form::Address, "the first token, if known").or_null(),
        column("asset0Index", Form::Number, "asset0_index", "index of the coin in a Curve pool")
            .or_null(),
        column("asset0In", Form::Amount, "asset0_in", "amount that went into the pool").or_null(),
        column("asset0Out", Form::Amount, "asset0_out", "amount that came out of the pool")
            .or_null(),
        computed("asset0Decimals", Form::Number, "decimals of these amounts").or_null(),
        computed("asset1", Form::Address, "the second token, if known").or_null(),
        column("asset1Index", Form::Number, "asset1_index", "index of the coin in a Curve pool")
            .or_null(),
        column("asset1In", Form::Amount, "asset1_in", "amount that went into the pool").or_null(),
        column("asset1Out", Form::Amount, "asset1_out", "amount that came out of the pool")
            .or_null(),
        computed("asset1Decimals", Form::Number, "decimals of these amounts").or_null(),
        column(
            "sqrtPriceX96",
            Form::Amount,
            "sqrt_price_x96",
            "price after the event, for V3 and V4",
        )
        .or_null(),
        column("liquidity", Form::Amount, "liquidity", "change of liquidity, for V3 and V4")
            .or_null(),
        TIME,
    ],
};

static ANNOUNCEMENT: Record = Record {
    name: "PoolAnnouncement",
    about: "A pool as a factory announced it.",
    base: None,
    fields: &[
        column("factory", Form::Address, "factory", "the contract that logged it"),
        column(
            "dex",
            Form::Text,
            "dex_key",
            "the kind of exchange, judged by the form of its logs",
        ),
        column("asset0", Form::Address, "asset0", "the first token"),
        column("asset1", Form::Address, "asset1", "the second token"),
        column("fee", Form::Number, "fee", "fee in hundredths of a basis point").or_null(),
        column("tickSpacing", Form::Number, "tick_spacing", "tick spacing, for V3 and V4")
            .or_null(),
        column("hooks", Form::Address, "hooks", "hooks contract, for V4").or_null(),
        column("createdBlock", Form::Number, "created_height", "block of the announcement"),
    ],
};

/// An announcement with its pool.
static ANNOUNCEMENT_ROW: Record = Record {
    name: "PoolAnnouncementRow",
    about: "",
    base: Some(&ANNOUNCEMENT),
    fields: &[column("pair", Form::Bytes, "pair_id", "")],
};

static STATE: Record = Record {
    name: "PoolState",
    about: "The last state that a pool logged.",
    base: None,
    fields: &[
        column("reserve0", Form::Amount, "reserve0", "reserve of the first token, for V2")
            .or_null(),
        column("reserve1", Form::Amount, "reserve1", "reserve of the second token, for V2")
            .or_null(),
        column("sqrtPriceX96", Form::Amount, "sqrt_price_x96", "price, for V3 and V4").or_null(),
        column("tick", Form::Number, "tick", "tick, for V3 and V4").or_null(),
        column("liquidity", Form::Amount, "liquidity", "liquidity, for V3 and V4").or_null(),
        column("lastBlock", Form::Number, "height", "block in which the state was logged"),
    ],
};

/// A state with its pool.
static STATE_ROW: Record = Record {
    name: "PoolStateRow",
    about: "",
    base: Some(&STATE),
    fields: &[
        column("pair", Form::Bytes, "pair_id", ""),
        column("contract", Form::Address, "contract_address", ""),
    ],
};

static STATS: Record = Record {
    name: "PoolStats",
    about: "",
    base: None,
    fields: &[
        column("pair", Form::Bytes, "pair_id", "address or id of the pool"),
        column(
            "contract",
            Form::Address,
            "contract_address",
            "the contract that logs the pool's events",
        ),
        column("swapCount", Form::Number, "swap_count", "number of swaps"),
        column("firstBlock", Form::Number, "first_seen_height", "block of the first event"),
        column("lastBlock", Form::Number, "last_seen_height", "block of the last event"),
    ],
};

static POOL: Record = Record {
    name: "Pool",
    about: "A pool with at least one event.",
    base: Some(&STATS),
    fields: &[
        computed("state", Form::Object(&STATE), "the last state that it logged").or_null(),
        computed(
            "announcements",
            Form::List(&Form::Object(&ANNOUNCEMENT)),
            "announcements of the pool, at most five",
        ),
    ],
};

static PAIR: Record = Record {
    name: "Pair",
    about: "A pool according to every contract that logged events or announcements of it; each list has at most 100 \
        entries.",
    base: None,
    fields: &[
        computed("pair", Form::Bytes, "address or id of the pool"),
        computed(
            "pools",
            Form::List(&Form::Object(&POOL_OF_PAIR)),
            "the contract that logs the pool's events",
        ),
        computed(
            "announcements",
            Form::List(&Form::Object(&ANNOUNCEMENT)),
            "announcements of the pool",
        ),
    ],
};

static POOL_OF_PAIR: Record = Record {
    name: "PairPool",
    about: "A contract that logs the events of a pool.",
    base: Some(&STATS),
    fields: &[computed("state", Form::Object(&STATE), "the last state that it logged").or_null()],
};

static EVENTS: List = List {
    table: &DEFI_EVENTS,
    record: &EVENT,
    order: &["block_height", "event_index", "batch_index"],
    direction: Direction::Down,
};

static POOLS: List = List {
    table: &DEFI_PAIR_STATS,
    record: &STATS,
    order: &["pair_id", "contract_address"],
    direction: Direction::Up,
};

const PAIR_PARAM: Param = required("pair", ParamKind::Pair, "address or id of the pool");

pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "swaps",
        path: "/swaps",
        summary: "The swaps, newest first.",
        needs: &[ProcessorName::Defi],
        uses: &[ProcessorName::Evm],
        params: &[],
        shape: Shape::Page(&EVENT),
        run: |call| Box::pin(swaps(call)),
    },
    Endpoint {
        id: "pairs",
        path: "/pairs",
        summary: "The pools with at least one event, ordered by id.",
        needs: &[ProcessorName::Defi],
        uses: &[],
        params: &[],
        shape: Shape::Page(&POOL),
        run: |call| Box::pin(pairs(call)),
    },
    Endpoint {
        id: "pair",
        path: "/pairs/{pair}",
        summary: "A pool, with its contracts and announcements.",
        needs: &[ProcessorName::Defi],
        uses: &[],
        params: &[PAIR_PARAM],
        shape: Shape::One(&PAIR),
        run: |call| Box::pin(pair(call)),
    },
    Endpoint {
        id: "pair_events",
        path: "/pairs/{pair}/events",
        summary: "The events of a pool, newest first.",
        needs: &[ProcessorName::Defi],
        uses: &[ProcessorName::Evm],
        params: &[PAIR_PARAM],
        shape: Shape::Page(&EVENT),
        run: |call| Box::pin(pair_events(call)),
    },
];

async fn swaps(call: &Call) -> ApiResult<Reply> {
    let is_swap = |event: &Object| event.get("type").is_some_and(|word| word == "Swap");
    let (mut items, next) = call.page_of(&EVENTS, &RowQuery::default(), is_swap).await?;
    complete_events(call.data()?, &mut items).await?;
    Ok(call.reply(items, next))
}

async fn pair_events(call: &Call) -> ApiResult<Reply> {
    let params = params![call.bytes("pair")?];
    let query = RowQuery { filter: "pair_id = $1".to_owned(), ..RowQuery::key("", params) };
    let (mut items, next) = call.page_of(&EVENTS, &query, |_| true).await?;
    complete_events(call.data()?, &mut items).await?;
    Ok(call.reply(items, next))
}

async fn complete_events(data: &Data, items: &mut [Object]) -> ApiResult<()> {
    data.add_hashes(items).await?;
    let announced = announcements(data, items).await?;
    for item in &mut *items {
        let known = announced.get(&pair_of(item)).map_or(&[][..], |known| &known[..]);
        for asset in ["asset0", "asset1"] {
            let said: BTreeSet<&str> = known.iter().filter_map(|one| one[asset].as_str()).collect();
            let agreed = said.first().filter(|_| said.len() == 1);
            item.insert(asset.to_owned(), json!(agreed));
        }
    }
    let assets = ["asset0", "asset1"];
    let tokens = items.iter().flat_map(|item| assets.map(|asset| address_in(item, asset)));
    let metadata = data.metadata(&tokens.flatten().collect()).await?;
    for item in items {
        for asset in assets {
            let known = address_in(item, asset).and_then(|token| metadata.get(&token));
            let decimals = json!(known.and_then(|known| known.decimals));
            item.insert(format!("{asset}Decimals"), decimals);
        }
    }
    Ok(())
}

fn pair_of(item: &Object) -> String {
    item.get("pair").and_then(Json::as_str).unwrap_or_default().to_owned()
}

fn pair_bytes(item: &Object) -> Option<Bytes> {
    alloy_primitives::hex::decode(item.get("pair")?.as_str()?).ok().map(Bytes::from)
}

/// The first announcements of each object's pool.
async fn announcements(data: &Data, items: &[Object]) -> ApiResult<BTreeMap<String, Vec<Object>>> {
    let pairs: BTreeSet<Bytes> = items.iter().filter_map(pair_bytes).collect();
    if pairs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let params = padded(pairs.iter().cloned().map(Value::Blob).collect());
    let query = RowQuery::key(&format!("pair_id IN ({})", places(1, params.len())), params);
    let (of, order) = ((&DEFI_PAIRS, &ANNOUNCEMENT_ROW), "pair_id, factory");
    let most = ANNOUNCEMENTS_MAX * pairs.len();
    let mut found = list::rows(data, of, query, order, most).await?;
    if found.len() == most {
        // Some pool may have so many announcements that they hide those of others, so each pool is read separately.
        found.clear();
        for pair in pairs {
            let query = RowQuery::key("pair_id = $1", params![pair]);
            found.extend(list::rows(data, of, query, order, ANNOUNCEMENTS_MAX).await?);
        }
    }
    let mut all: BTreeMap<String, Vec<Object>> = BTreeMap::new();
    for mut announcement in found {
        let of_pair = all.entry(pair_of(&announcement)).or_default();
        announcement.remove("pair");
        if of_pair.len() < ANNOUNCEMENTS_MAX {
            of_pair.push(announcement);
        }
    }
    Ok(all)
}

async fn pairs(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let (mut items, next) = call.page_of(&POOLS, &RowQuery::default(), |_| true).await?;
    add_states(data, &mut items).await?;
    let announced = announcements(data, &items).await?;
    for item in &mut items {
        let known = announced.get(&pair_of(item)).cloned().unwrap_or_default();
        item.insert("announcements".to_owned(), json!(known));
    }
    Ok(call.reply(items, next))
}

/// Adds the latest state of each pool.
async fn add_states(data: &Data, items: &mut [Object]) -> ApiResult<()> {
    let mut params: Vec<Value> = Vec::new();
    let mut rows = Vec::new();
    for item in &*items {
        let (Some(pair), Some(contract)) = (pair_bytes(item), address_in(item, "contract")) else {
            continue;
        };
        let Some(contract) = data.id(contract).await? else {
            continue;
        };
        params.extend(params![pair, contract]);
        let (pair, contract) = (params.len() - 1, params.len());
        rows.push(format!("(CAST(${pair} AS {{bytes}}), CAST(${contract} AS BIGINT))"));
    }
    let mut states = Vec::new();
    if !rows.is_empty() {
        let key = format!("(pair_id, contract_address) IN (VALUES {})", rows.join(", "));
        let of = (&DEFI_RESERVES, &STATE_ROW);
        states = list::rows(data, of, RowQuery::key(&key, params), "pair_id", rows.len()).await?;
    }
    for item in items {
        let same = |state: &&Object| ["pair", "contract"].iter().all(|f| state[*f] == item[*f]);
        let state = states.iter().find(same).cloned().map(|mut state| {
            state.retain(|name, _| !["pair", "contract"].contains(&name.as_str()));
            state
        });
        item.insert("state".to_owned(), json!(state));
    }
    Ok(())
}

async fn pair(call: &Call) -> ApiResult<Reply> {
    let (data, pair) = (call.data()?, call.bytes("pair")?);
    let query = || RowQuery::key("pair_id = $1", params![pair.clone()]);
    let of = (&DEFI_PAIR_STATS, &STATS);
    let mut pools = list::rows(data, of, query(), "contract_address", LIMIT_MAX).await?;
    add_states(data, &mut pools).await?;
    let of = (&DEFI_PAIRS, &ANNOUNCEMENT);
    let announcements = list::rows(data, of, query(), "factory", LIMIT_MAX).await?;
    if pools.is_empty() && announcements.is_empty() {
        return Err(ApiError::not_found("no covered block mentions this pool"));
    }
    Ok(Reply::One(Object::from_iter([
        ("pair".to_owned(), super::record::bytes(&pair)),
        ("pools".to_owned(), json!(pools)),
        ("announcements".to_owned(), json!(announcements)),
    ])))
}
