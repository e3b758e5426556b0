//! The items of a collection: which there are, who owns them, how they moved.
//!
//! Items of ERC-721 and of ERC-1155 are in tables of their own, and a contract may have both: the two are merged in the
//! order of their ids.
//!
//! Guarantees: an item is shown once per standard, however many own it. Leaves to others: what an account owns
//! ([`super::nfts`]).

use logmill_io::{Amount, params};
use logmill_pipeline::derive::Kind;
use logmill_pipeline::processors::nft_ownership::{NFT_BALANCES, NFT_OWNERSHIP};
use serde_json::{Value as Json, json};

use super::call::{Call, LIMIT_DEFAULT, Reply};
use super::collections::{COLLECTION_PARAM, NFT_TRANSFER, NFT_TRANSFER_LIST};
use super::data::Data;
use super::endpoint::{Endpoint, Shape};
use super::error::{ApiError, ApiResult};
use super::item_metadata::{self, ITEM_METADATA};
use super::list::{Ask, Direction, Item, LOOKED_AT_MAX, List, Stretch, merged};
use super::param::{Param, ParamKind, required};
use super::position::{Place, Position};
use super::record::{Form, Object, Record, address_in, column, computed};

static ITEM: Record = Record {
    name: "Item",
    about: "An item of a collection.",
    base: None,
    fields: &[
        column("collection", Form::Address, "contract_address", "the collection"),
        column("id", Form::Amount, "nft_id", "its id"),
        computed("standard", Form::Text, "`erc721` or `erc1155`"),
        column("owner", Form::Address, "owner", "who owns it; null if burnt, and for erc1155")
            .or_null(),
        computed("burned", Form::Flag, "whether it was burnt; null for erc1155").or_null(),
        column("lastBlock", Form::Number, "last_height", "of its last transfer; null for erc1155")
            .or_null(),
        column(
            "transferCount",
            Form::Number,
            "transfer_count",
            "how many transfers there were; null for erc1155",
        )
        .or_null(),
        computed("name", Form::Text, "what its metadata call it").or_null(),
        computed("image", Form::Text, "where its metadata say that its picture is").or_null(),
    ],
};

static ITEM_DETAIL: Record = Record {
    name: "ItemDetail",
    about: "An item of a collection.",
    base: Some(&ITEM),
    fields: &[
        computed("owners", Form::List(&Form::Object(&OWNER)), "who owns it, the first of them"),
        computed("moreOwners", Form::Flag, "whether there are more: see `owners` below it"),
        computed(
            "complete",
            Form::Flag,
            "whether the covered blocks have all of the collection's life",
        ),
        computed("metadata", Form::Object(&ITEM_METADATA), "as they were fetched").or_null(),
    ],
};

/// Who owns how many of an item.
static OWNER: Record = Record {
    name: "ItemOwner",
    about: "Who owns an item, and how many.",
    base: None,
    fields: &[
        column("owner", Form::Address, "owner", "who"),
        column("quantity", Form::Amount, "quantity", "how many"),
        column("lastBlock", Form::Number, "last_height", "when that last changed"),
    ],
};

/// An item of ERC-1155 by way of somebody who has or had it.
static HELD: Record = Record {
    name: "HeldItem",
    about: "",
    base: None,
    fields: &[
        column("collection", Form::Address, "contract_address", ""),
        column("id", Form::Amount, "nft_id", ""),
    ],
};

static UNIQUE: List =
    List { table: &NFT_OWNERSHIP, record: &ITEM, order: &["nft_id"], direction: Direction::Up };

static MULTI: List = List {
    table: &NFT_BALANCES,
    record: &HELD,
    order: &["nft_id", "owner"],
    direction: Direction::Up,
};

static OWNERS: List =
    List { table: &NFT_BALANCES, record: &OWNER, order: &["owner"], direction: Direction::Up };

const ITEM_PARAM: Param = required("id", ParamKind::Item, "the item's id");

/// The paths of this file.
pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "items",
        path: "/collections/{address}/items",
        summary: "The items of a collection, by their ids.",
        needs: &["nft_ownership_worker"],
        uses: &[],
        params: &[COLLECTION_PARAM],
        shape: Shape::Page(&ITEM),
        run: |call| Box::pin(items(call)),
    },
    Endpoint {
        id: "item",
        path: "/collections/{address}/items/{id}",
        summary: "An item of a collection.",
        needs: &["nft_ownership_worker"],
        uses: &["meta_worker"],
        params: &[COLLECTION_PARAM, ITEM_PARAM],
        shape: Shape::One(&ITEM_DETAIL),
        run: |call| Box::pin(item(call)),
    },
    Endpoint {
        id: "item_owners",
        path: "/collections/{address}/items/{id}/owners",
        summary: "Who owns an item, in a fixed order.",
        needs: &["nft_ownership_worker"],
        uses: &[],
        params: &[COLLECTION_PARAM, ITEM_PARAM],
        shape: Shape::Page(&OWNER),
        run: |call| Box::pin(owners(call)),
    },
    Endpoint {
        id: "item_transfers",
        path: "/collections/{address}/items/{id}/transfers",
        summary: "The transfers of an item, newest first.",
        needs: &["token_worker"],
        uses: &["evm_worker"],
        params: &[COLLECTION_PARAM, ITEM_PARAM],
        shape: Shape::Page(&NFT_TRANSFER),
        run: |call| Box::pin(transfers(call)),
    },
];

/// Which of the two tables a place is of.
pub(super) const IN_UNIQUE: i64 = 0;
pub(super) const IN_MULTI: i64 = 1;

/// The kinds of a position among items: the id, and the table.
const ITEM_KINDS: [Kind; 2] = [Kind::Amount, Kind::Int];

async fn items(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let start = || Position(vec![Place::Amount(Amount::MIN), Place::Int(IN_UNIQUE)]);
    let from = call.position(&ITEM_KINDS)?.unwrap_or_else(start);
    let Some(collection) = data.id(call.address("address")?).await? else {
        return Ok(call.reply(Vec::new(), None));
    };
    let want = call.limit() + 1;
    let ask = Ask::key("contract_address = $1", params![collection]);
    let of_unique = Position(from.0[..1].to_vec());
    let mut unique = UNIQUE.stretch(data, &ask, of_unique, want, |_| true).await?;
    unique.in_table(IN_UNIQUE);
    let multi = multi(data, &ask, &from, want).await?;
    let (mut items, next) = merged(unique, multi).page(call.limit());
    items.iter_mut().for_each(complete_item);
    item_metadata::add_names(data, &mut items).await?;
    Ok(call.reply(items, next))
}

/// Items of ERC-1155 behind a position, each once.
async fn multi(data: &Data, ask: &Ask, from: &Position, want: usize) -> ApiResult<Stretch> {
    // Of an item whose place in the other table is the position, this one is still to come.
    let owner = if from.0.get(1) == Some(&Place::Int(IN_UNIQUE)) { i64::MIN } else { i64::MAX };
    let mut from = Position(vec![from.0[0].clone(), Place::Int(owner)]);
    let (mut items, mut looked_at): (Vec<Item>, usize) = (Vec::new(), 0);
    loop {
        let found = MULTI.rows(data, ask, &from, want).await?;
        let (is_all, found_len) = (found.len() < want, found.len());
        for Item { object, position } in found {
            let position = Position(vec![position.0[0].clone(), Place::Int(IN_MULTI)]);
            if items.last().is_none_or(|last| last.position != position) {
                items.push(Item { object, position });
            }
        }
        looked_at += found_len;
        let end = items.last().map(|item| item.position.clone());
        if is_all {
            return Ok(Stretch { items, end: None });
        }
        if items.len() >= want || looked_at >= LOOKED_AT_MAX {
            return Ok(Stretch { items, end });
        }
        // Its other owners are passed over.
        let last = end.map_or(Place::Amount(Amount::MAX), |end| end.0[0].clone());
        from = Position(vec![last, Place::Int(i64::MAX)]);
    }
}

/// Says of an item what its row leaves open.
fn complete_item(item: &mut Object) {
    let is_unique = item.contains_key("owner");
    if is_unique {
        let is_burned = address_in(item, "owner").is_some_and(|owner| owner.is_zero());
        item.insert("standard".to_owned(), "erc721".into());
        item.insert("burned".to_owned(), is_burned.into());
        if is_burned {
            item.insert("owner".to_owned(), Json::Null);
        }
        return;
    }
    item.insert("standard".to_owned(), "erc1155".into());
    for field in ["owner", "burned", "lastBlock", "transferCount"] {
        item.insert(field.to_owned(), Json::Null);
    }
}

/// The item of a path, as an ask of either table.
async fn asked(call: &Call, data: &Data) -> ApiResult<Option<Ask>> {
    let Some(collection) = data.id(call.address("address")?).await? else {
        return Ok(None);
    };
    let params = params![collection, call.amount("id")?];
    Ok(Some(Ask::key("contract_address = $1 AND nft_id = $2", params)))
}

async fn item(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let unknown = || ApiError::not_found("no covered block has a transfer of such an item");
    let ask = asked(call, data).await?.ok_or_else(unknown)?;
    let unique = super::list::row(data, (&NFT_OWNERSHIP, &ITEM), ask.clone()).await?;
    let found = match unique {
        Some(item) => Some(item),
        None => super::list::row(data, (&NFT_BALANCES, &HELD), ask.clone()).await?,
    };
    let mut item = found.ok_or_else(unknown)?;
    complete_item(&mut item);
    let (owners, more) = owners_of(data, &ask, None, LIMIT_DEFAULT).await?;
    item.insert("owners".to_owned(), json!(owners));
    item.insert("moreOwners".to_owned(), more.is_some().into());
    let collection = call.address("address")?;
    let complete = data.complete("nft_ownership_worker", [collection].into()).await?;
    item.insert("complete".to_owned(), complete.contains(&collection).into());
    item_metadata::add_all(data, &mut item).await?;
    Ok(Reply::One(item))
}

/// The kinds of a position among owners: the table, and the owner.
const OWNER_KINDS: [Kind; 2] = [Kind::Int, Kind::Int];

async fn owners(call: &Call) -> ApiResult<Reply> {
    let (data, from) = (call.data()?, call.position(&OWNER_KINDS)?);
    let Some(ask) = asked(call, data).await? else {
        return Ok(call.reply(Vec::new(), None));
    };
    let (items, next) = owners_of(data, &ask, from, call.limit()).await?;
    Ok(call.reply(items, next))
}

async fn owners_of(
    data: &Data,
    ask: &Ask,
    from: Option<Position>,
    limit: usize,
) -> ApiResult<(Vec<Object>, Option<Position>)> {
    let mut unique = Stretch::default();
    if from.is_none() {
        let item = super::list::row(data, (&NFT_OWNERSHIP, &ITEM), ask.clone()).await?;
        let is_owned = |item: &Object| address_in(item, "owner").is_some_and(|o| !o.is_zero());
        unique.items = item.filter(is_owned).into_iter().map(only_owner).collect();
    }
    let owner = from.map_or(Place::Int(i64::MIN), |from| from.0[1].clone());
    let from = Position(vec![owner]);
    let mut multi = OWNERS.stretch(data, ask, from, limit + 1, is_some_quantity).await?;
    for place in multi.items.iter_mut().map(|item| &mut item.position).chain(&mut multi.end) {
        place.0.insert(0, Place::Int(IN_MULTI));
    }
    Ok(merged(unique, multi).page(limit))
}

/// Whether there is something of what a row counts.
pub(super) fn is_some_quantity(object: &Object) -> bool {
    let quantity = object.get("quantity").and_then(Json::as_str);
    quantity.is_some_and(|quantity| quantity != "0" && !quantity.starts_with('-'))
}

fn only_owner(mut item: Object) -> Item {
    item.retain(|name, _| ["owner", "lastBlock"].contains(&name.as_str()));
    item.insert("quantity".to_owned(), "1".into());
    Item { object: item, position: Position(vec![Place::Int(IN_UNIQUE), Place::Int(0)]) }
}

async fn transfers(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let Some(collection) = data.id(call.address("address")?).await? else {
        call.position(&NFT_TRANSFER_LIST.kinds())?;
        return Ok(call.reply(Vec::new(), None));
    };
    let params = params![collection, call.amount("id")?];
    let filter = "contract_address = $1 AND token_id = $2".to_owned();
    let ask = Ask { filter, ..Ask::key("", params) };
    let (mut items, next) = call.stretch(&NFT_TRANSFER_LIST, &ask, |_| true).await?;
    data.add_hashes(&mut items).await?;
    Ok(call.reply(items, next))
}
