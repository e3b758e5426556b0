//! What happens in pools: swaps, the pools, and everything in one of them.
//!
//! Anybody may announce a pool and log its id, so what is known is shown with the contract that said it: the contracts
//! that speak for a pool, and those that announced it. The tokens of an event are told only where all announcements of
//! its pool agree.
//!
//! Guarantees: a page looks at a bounded number of rows. Leaves to others: which factories to trust, prices.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use logmill_io::{Value, params};
use logmill_pipeline::processors::defi::{DEFI_EVENTS, DEFI_PAIR_STATS, DEFI_PAIRS, DEFI_RESERVES};
use serde_json::{Value as Json, json};

use super::call::{Call, LIMIT_MAX, Reply};
use super::data::{BLOCK, Data, HASH, LOG_INDEX, TIME, TX_INDEX, padded, places};
use super::endpoint::{Endpoint, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{self, Ask, Direction, List};
use super::param::{Param, ParamKind, required};
use super::record::{Form, Object, Record, address_in, column, computed};

/// The most announcements of a pool that a list looks at.
const ANNOUNCEMENTS_MAX: usize = 5;

static EVENT: Record = Record {
    name: "PoolEvent",
    about: "A swap, or liquidity that came or went. In and out are seen from the pool.",
    base: None,
    fields: &[
        BLOCK,
        LOG_INDEX,
        column("batchIndex", Form::Number, "batch_index", "its position in its log"),
        TX_INDEX,
        HASH,
        column("pair", Form::Bytes, "pair_id", "the pool: its address, or its id"),
        column("contract", Form::Address, "contract_address", "who says so"),
        column("dex", Form::Text, "dex_key", "the kind of exchange, by the shape of its logs"),
        column("type", Form::Text, "event_type", "`Swap`, `AddLiquidity` or `RemoveLiquidity`"),
        column("maker", Form::Address, "maker", "who sent the transaction").or_null(),
        column("account", Form::Address, "account", "whom the log names").or_null(),
        computed("asset0", Form::Address, "the first token, if that is known").or_null(),
        column("asset0Index", Form::Number, "asset0_index", "which coin of a Curve pool it is")
            .or_null(),
        column("asset0In", Form::Amount, "asset0_in", "what came of it").or_null(),
        column("asset0Out", Form::Amount, "asset0_out", "what went of it").or_null(),
        computed("asset0Decimals", Form::Number, "of these amounts").or_null(),
        computed("asset1", Form::Address, "the second token, if that is known").or_null(),
        column("asset1Index", Form::Number, "asset1_index", "which coin of a Curve pool it is")
            .or_null(),
        column("asset1In", Form::Amount, "asset1_in", "what came of it").or_null(),
        column("asset1Out", Form::Amount, "asset1_out", "what went of it").or_null(),
        computed("asset1Decimals", Form::Number, "of these amounts").or_null(),
        column("sqrtPriceX96", Form::Amount, "sqrt_price_x96", "the price after it, of V3 and V4")
            .or_null(),
        column("liquidity", Form::Amount, "liquidity", "how much came or went, of V3 and V4")
            .or_null(),
        TIME,
    ],
};

static ANNOUNCEMENT: Record = Record {
    name: "PoolAnnouncement",
    about: "A pool as a factory announced it.",
    base: None,
    fields: &[
        column("factory", Form::Address, "factory", "who says so"),
        column("dex", Form::Text, "dex_key", "the kind of exchange, by the shape of its logs"),
        column("asset0", Form::Address, "asset0", "the first token"),
        column("asset1", Form::Address, "asset1", "the second token"),
        column("fee", Form::Number, "fee", "in hundredths of a basis point").or_null(),
        column("tickSpacing", Form::Number, "tick_spacing", "of V3 and V4").or_null(),
        column("hooks", Form::Address, "hooks", "of V4").or_null(),
        column("createdBlock", Form::Number, "created_height", "when"),
    ],
};

/// An announcement with the pool that it is of.
static ANNOUNCED: Record = Record {
    name: "AnnouncedPool",
    about: "",
    base: Some(&ANNOUNCEMENT),
    fields: &[column("pair", Form::Bytes, "pair_id", "")],
};

static STATE: Record = Record {
    name: "PoolState",
    about: "The last state that a pool told.",
    base: None,
    fields: &[
        column("reserve0", Form::Amount, "reserve0", "what it has of the first token, of V2")
            .or_null(),
        column("reserve1", Form::Amount, "reserve1", "what it has of the second token, of V2")
            .or_null(),
        column("sqrtPriceX96", Form::Amount, "sqrt_price_x96", "its price, of V3 and V4").or_null(),
        column("tick", Form::Number, "tick", "its tick, of V3 and V4").or_null(),
        column("liquidity", Form::Amount, "liquidity", "its liquidity, of V3 and V4").or_null(),
        column("lastBlock", Form::Number, "height", "when it told"),
    ],
};

/// A state with the pool that it is of.
static TOLD: Record = Record {
    name: "ToldState",
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
        column("pair", Form::Bytes, "pair_id", "the pool: its address, or its id"),
        column("contract", Form::Address, "contract_address", "who speaks for it"),
        column("swapCount", Form::Number, "swap_count", "how many swaps there were"),
        column("firstBlock", Form::Number, "first_seen_height", "of the first event"),
        column("lastBlock", Form::Number, "last_seen_height", "of the last event"),
    ],
};

static POOL: Record = Record {
    name: "Pool",
    about: "A pool in which something happened.",
    base: Some(&STATS),
    fields: &[
        computed("state", Form::Object(&STATE), "the last state that it told").or_null(),
        computed(
            "announcements",
            Form::List(&Form::Object(&ANNOUNCEMENT)),
            "who announced it, the first five of them",
        ),
    ],
};

static PAIR: Record = Record {
    name: "Pair",
    about: "What is known of a pool by all who speak of it; the first hundred of each.",
    base: None,
    fields: &[
        computed("pair", Form::Bytes, "the pool: its address, or its id"),
        computed("pools", Form::List(&Form::Object(&POOL_OF_PAIR)), "who speaks for it"),
        computed("announcements", Form::List(&Form::Object(&ANNOUNCEMENT)), "who announced it"),
    ],
};

static POOL_OF_PAIR: Record = Record {
    name: "PairPool",
    about: "A contract that speaks for a pool.",
    base: Some(&STATS),
    fields: &[computed("state", Form::Object(&STATE), "the last state that it told").or_null()],
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

const PAIR_PARAM: Param = required("pair", ParamKind::Pair, "the pool's address, or its id");

/// The paths of this file.
pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "swaps",
        path: "/swaps",
        summary: "The swaps, newest first.",
        needs: &["defi_worker"],
        uses: &["evm_worker"],
        params: &[],
        shape: Shape::Page(&EVENT),
        run: |call| Box::pin(swaps(call)),
    },
    Endpoint {
        id: "pairs",
        path: "/pairs",
        summary: "The pools in which something happened, by their ids.",
        needs: &["defi_worker"],
        uses: &[],
        params: &[],
        shape: Shape::Page(&POOL),
        run: |call| Box::pin(pairs(call)),
    },
    Endpoint {
        id: "pair",
        path: "/pairs/{pair}",
        summary: "What is known of a pool.",
        needs: &["defi_worker"],
        uses: &[],
        params: &[PAIR_PARAM],
        shape: Shape::One(&PAIR),
        run: |call| Box::pin(pair(call)),
    },
    Endpoint {
        id: "pair_events",
        path: "/pairs/{pair}/events",
        summary: "What happened in a pool, newest first.",
        needs: &["defi_worker"],
        uses: &["evm_worker"],
        params: &[PAIR_PARAM],
        shape: Shape::Page(&EVENT),
        run: |call| Box::pin(pair_events(call)),
    },
];

async fn swaps(call: &Call) -> ApiResult<Reply> {
    let is_swap = |event: &Object| event.get("type").is_some_and(|word| word == "Swap");
    let (mut items, next) = call.stretch(&EVENTS, &Ask::default(), is_swap).await?;
    complete_events(call.data()?, &mut items).await?;
    Ok(call.reply(items, next))
}

async fn pair_events(call: &Call) -> ApiResult<Reply> {
    let params = params![call.bytes("pair")?];
    let ask = Ask { filter: "pair_id = $1".to_owned(), ..Ask::key("", params) };
    let (mut items, next) = call.stretch(&EVENTS, &ask, |_| true).await?;
    complete_events(call.data()?, &mut items).await?;
    Ok(call.reply(items, next))
}

/// Adds hashes, tokens and their decimals to events.
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

/// The announcements of the pools of objects, the first of each.
async fn announcements(data: &Data, items: &[Object]) -> ApiResult<BTreeMap<String, Vec<Object>>> {
    let pairs: BTreeSet<Bytes> = items.iter().filter_map(pair_bytes).collect();
    if pairs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let params = padded(pairs.iter().cloned().map(Value::Blob).collect());
    let ask = Ask::key(&format!("pair_id IN ({})", places(1, params.len())), params);
    let (of, order) = ((&DEFI_PAIRS, &ANNOUNCED), "pair_id, factory");
    let most = ANNOUNCEMENTS_MAX * pairs.len();
    let mut found = list::rows(data, of, ask, order, most).await?;
    if found.len() == most {
        // Some pool has so many that they hide those of others: each by itself.
        found.clear();
        for pair in pairs {
            let ask = Ask::key("pair_id = $1", params![pair]);
            found.extend(list::rows(data, of, ask, order, ANNOUNCEMENTS_MAX).await?);
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
    let (mut items, next) = call.stretch(&POOLS, &Ask::default(), |_| true).await?;
    add_states(data, &mut items).await?;
    let announced = announcements(data, &items).await?;
    for item in &mut items {
        let known = announced.get(&pair_of(item)).cloned().unwrap_or_default();
        item.insert("announcements".to_owned(), json!(known));
    }
    Ok(call.reply(items, next))
}

/// Adds the last states of pools.
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
    let mut told = Vec::new();
    if !rows.is_empty() {
        let key = format!("(pair_id, contract_address) IN (VALUES {})", rows.join(", "));
        let of = (&DEFI_RESERVES, &TOLD);
        told = list::rows(data, of, Ask::key(&key, params), "pair_id", rows.len()).await?;
    }
    for item in items {
        let same = |state: &&Object| ["pair", "contract"].iter().all(|f| state[*f] == item[*f]);
        let state = told.iter().find(same).cloned().map(|mut state| {
            state.retain(|name, _| !["pair", "contract"].contains(&name.as_str()));
            state
        });
        item.insert("state".to_owned(), json!(state));
    }
    Ok(())
}

async fn pair(call: &Call) -> ApiResult<Reply> {
    let (data, pair) = (call.data()?, call.bytes("pair")?);
    let ask = || Ask::key("pair_id = $1", params![pair.clone()]);
    let of = (&DEFI_PAIR_STATS, &STATS);
    let mut pools = list::rows(data, of, ask(), "contract_address", LIMIT_MAX).await?;
    add_states(data, &mut pools).await?;
    let of = (&DEFI_PAIRS, &ANNOUNCEMENT);
    let announcements = list::rows(data, of, ask(), "factory", LIMIT_MAX).await?;
    if pools.is_empty() && announcements.is_empty() {
        return Err(ApiError::not_found("no covered block names such a pool"));
    }
    Ok(Reply::One(Object::from_iter([
        ("pair".to_owned(), super::record::bytes(&pair)),
        ("pools".to_owned(), json!(pools)),
        ("announcements".to_owned(), json!(announcements)),
    ])))
}
