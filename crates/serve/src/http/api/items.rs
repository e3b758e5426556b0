//! The items of a collection, their owners and their transfers.
//!
//! ERC-721 and ERC-1155 items are in separate tables, and a contract may have both: the two lists are merged in the
//! order of ids.
//!
//! Guarantees: an item appears once per standard, however many owners it has. Leaves to others: the items of an account
//! ([`super::nfts`]).

use logmill_io::{Amount, params};
use logmill_pipeline::derive::Kind;
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::nft_ownership::{NFT_BALANCES, NFT_OWNERSHIP};
use serde_json::{Value as Json, json};

use super::collections::{COLLECTION_PARAM, NFT_TRANSFER, NFT_TRANSFER_LIST};
use super::data::Data;
use super::endpoint::{Call, Endpoint, LIMIT_DEFAULT, Reply, Shape};
use super::error::{ApiError, ApiResult};
use super::item_metadata::{self, ITEM_METADATA};
use super::list::{Direction, Item, List, ROWS_READ_MAX, RowQuery, ScanPage, merged};
use super::param::{Param, ParamKind, required};
use super::position::{OrderValue, Position};
use super::record::{Form, Object, Record, address_in, column, computed};

static ITEM: Record = Record {
    name: "Item",
    about: "An item of a collection.",
    base: None,
    fields: &[
        column("collection", Form::Address, "contract_address", "the collection"),
        column("id", Form::Amount, "nft_id", "id of the item"),
        computed("standard", Form::Text, "`erc721` or `erc1155`"),
        column("owner", Form::Address, "owner", "the owner; null if burned, and for erc1155")
            .or_null(),
        computed("burned", Form::Flag, "whether it was burned; null for erc1155").or_null(),
        column(
            "lastBlock",
            Form::Number,
            "last_height",
            "block of the last transfer; null for erc1155",
        )
        .or_null(),
        column(
            "transferCount",
            Form::Number,
            "transfer_count",
            "number of transfers; null for erc1155",
        )
        .or_null(),
        computed("name", Form::Text, "name in the metadata").or_null(),
        computed("image", Form::Text, "image URL in the metadata").or_null(),
    ],
};

static ITEM_DETAIL: Record = Record {
    name: "ItemDetail",
    about: "An item of a collection.",
    base: Some(&ITEM),
    fields: &[
        computed("owners", Form::List(&Form::Object(&OWNER)), "the first owners"),
        computed("moreOwners", Form::Flag, "whether there are more; the path `…/owners` lists all"),
        computed(
            "complete",
            Form::Flag,
            "whether the covered blocks include the collection's whole life",
        ),
        computed("metadata", Form::Object(&ITEM_METADATA), "the metadata as fetched").or_null(),
    ],
};

static OWNER: Record = Record {
    name: "ItemOwner",
    about: "An owner of an item, with the quantity.",
    base: None,
    fields: &[
        column("owner", Form::Address, "owner", "the owner"),
        column("quantity", Form::Amount, "quantity", "quantity owned"),
        column("lastBlock", Form::Number, "last_height", "block of the last change"),
    ],
};

/// An ERC-1155 item, from the row of a current or former owner.
static MULTI_ITEM_ROW: Record = Record {
    name: "MultiItemRow",
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
    record: &MULTI_ITEM_ROW,
    order: &["nft_id", "owner"],
    direction: Direction::Up,
};

static OWNERS: List =
    List { table: &NFT_BALANCES, record: &OWNER, order: &["owner"], direction: Direction::Up };

const ITEM_PARAM: Param = required("id", ParamKind::Item, "id of the item");

pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "items",
        path: "/collections/{address}/items",
        summary: "The items of a collection, ordered by id.",
        needs: &[ProcessorName::NftOwnership],
        uses: &[],
        params: &[COLLECTION_PARAM],
        shape: Shape::Page(&ITEM),
        run: |call| Box::pin(items(call)),
    },
    Endpoint {
        id: "item",
        path: "/collections/{address}/items/{id}",
        summary: "An item of a collection.",
        needs: &[ProcessorName::NftOwnership],
        uses: &[ProcessorName::Meta],
        params: &[COLLECTION_PARAM, ITEM_PARAM],
        shape: Shape::One(&ITEM_DETAIL),
        run: |call| Box::pin(item(call)),
    },
    Endpoint {
        id: "item_owners",
        path: "/collections/{address}/items/{id}/owners",
        summary: "The owners of an item, in a fixed order.",
        needs: &[ProcessorName::NftOwnership],
        uses: &[],
        params: &[COLLECTION_PARAM, ITEM_PARAM],
        shape: Shape::Page(&OWNER),
        run: |call| Box::pin(owners(call)),
    },
    Endpoint {
        id: "item_transfers",
        path: "/collections/{address}/items/{id}/transfers",
        summary: "The transfers of an item, newest first.",
        needs: &[ProcessorName::Token],
        uses: &[ProcessorName::Evm],
        params: &[COLLECTION_PARAM, ITEM_PARAM],
        shape: Shape::Page(&NFT_TRANSFER),
        run: |call| Box::pin(transfers(call)),
    },
];

/// The table that a position belongs to.
pub(super) const IN_UNIQUE: i64 = 0;
pub(super) const IN_MULTI: i64 = 1;

/// Column kinds of a position among items: id, table.
const ITEM_KINDS: [Kind; 2] = [Kind::Amount, Kind::Int];

async fn items(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let start = || Position(vec![OrderValue::Amount(Amount::MIN), OrderValue::Int(IN_UNIQUE)]);
    let from = call.position(&ITEM_KINDS)?.unwrap_or_else(start);
    let Some(collection) = data.id(call.address("address")?).await? else {
        return Ok(call.reply(Vec::new(), None));
    };
    let want = call.limit() + 1;
    let query = RowQuery::key("contract_address = $1", params![collection]);
    let of_unique = Position(from.0[..1].to_vec());
    let mut unique = UNIQUE.scan(data, &query, of_unique, want, |_| true).await?;
    unique.in_table(IN_UNIQUE);
    let multi = multi(data, &query, &from, want).await?;
    let (mut items, next) = merged(unique, multi).page(call.limit());
    items.iter_mut().for_each(complete_item);
    item_metadata::add_names(data, &mut items).await?;
    Ok(call.reply(items, next))
}

/// ERC-1155 items after a position, each once.
async fn multi(data: &Data, query: &RowQuery, from: &Position, want: usize) -> ApiResult<ScanPage> {
    // If the position is this item's row in the other table, its row here is still to come.
    let owner =
        if from.0.get(1) == Some(&OrderValue::Int(IN_UNIQUE)) { i64::MIN } else { i64::MAX };
    let mut from = Position(vec![from.0[0].clone(), OrderValue::Int(owner)]);
    let (mut items, mut rows_read): (Vec<Item>, usize) = (Vec::new(), 0);
    loop {
        let found = MULTI.rows(data, query, &from, want).await?;
        let (is_all, found_len) = (found.len() < want, found.len());
        for Item { object, position } in found {
            let position = Position(vec![position.0[0].clone(), OrderValue::Int(IN_MULTI)]);
            if items.last().is_none_or(|last| last.position != position) {
                items.push(Item { object, position });
            }
        }
        rows_read += found_len;
        let end = items.last().map(|item| item.position.clone());
        if is_all {
            return Ok(ScanPage { items, end: None });
        }
        if items.len() >= want || rows_read >= ROWS_READ_MAX {
            return Ok(ScanPage { items, end });
        }
        // Skips the other owners of this item.
        let last = end.map_or(OrderValue::Amount(Amount::MAX), |end| end.0[0].clone());
        from = Position(vec![last, OrderValue::Int(i64::MAX)]);
    }
}

/// Fills in the fields that the row does not contain.
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

/// The query for the item of the path, for either table.
async fn item_query(call: &Call, data: &Data) -> ApiResult<Option<RowQuery>> {
    let Some(collection) = data.id(call.address("address")?).await? else {
        return Ok(None);
    };
    let params = params![collection, call.amount("id")?];
    Ok(Some(RowQuery::key("contract_address = $1 AND nft_id = $2", params)))
}

async fn item(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let unknown = || ApiError::not_found("no covered block has a transfer of this item");
    let query = item_query(call, data).await?.ok_or_else(unknown)?;
    let unique = super::list::row(data, (&NFT_OWNERSHIP, &ITEM), query.clone()).await?;
    let found = match unique {
        Some(item) => Some(item),
        None => super::list::row(data, (&NFT_BALANCES, &MULTI_ITEM_ROW), query.clone()).await?,
    };
    let mut item = found.ok_or_else(unknown)?;
    complete_item(&mut item);
    let (owners, more) = owners_of(data, &query, None, LIMIT_DEFAULT).await?;
    item.insert("owners".to_owned(), json!(owners));
    item.insert("moreOwners".to_owned(), more.is_some().into());
    let collection = call.address("address")?;
    let complete = data.complete(ProcessorName::NftOwnership, [collection].into()).await?;
    item.insert("complete".to_owned(), complete.contains(&collection).into());
    item_metadata::add_all(data, &mut item).await?;
    Ok(Reply::One(item))
}

/// Column kinds of a position among owners: table, owner.
const OWNER_KINDS: [Kind; 2] = [Kind::Int, Kind::Int];

async fn owners(call: &Call) -> ApiResult<Reply> {
    let (data, from) = (call.data()?, call.position(&OWNER_KINDS)?);
    let Some(query) = item_query(call, data).await? else {
        return Ok(call.reply(Vec::new(), None));
    };
    let (items, next) = owners_of(data, &query, from, call.limit()).await?;
    Ok(call.reply(items, next))
}

async fn owners_of(
    data: &Data,
    query: &RowQuery,
    from: Option<Position>,
    limit: usize,
) -> ApiResult<(Vec<Object>, Option<Position>)> {
    let mut unique = ScanPage::default();
    if from.is_none() {
        let item = super::list::row(data, (&NFT_OWNERSHIP, &ITEM), query.clone()).await?;
        let is_owned = |item: &Object| address_in(item, "owner").is_some_and(|o| !o.is_zero());
        unique.items = item.filter(is_owned).into_iter().map(only_owner).collect();
    }
    let owner = from.map_or(OrderValue::Int(i64::MIN), |from| from.0[1].clone());
    let from = Position(vec![owner]);
    let mut multi = OWNERS.scan(data, query, from, limit + 1, is_some_quantity).await?;
    for place in multi.items.iter_mut().map(|item| &mut item.position).chain(&mut multi.end) {
        place.0.insert(0, OrderValue::Int(IN_MULTI));
    }
    Ok(merged(unique, multi).page(limit))
}

/// Whether the quantity of an object is above zero.
pub(super) fn is_some_quantity(object: &Object) -> bool {
    let quantity = object.get("quantity").and_then(Json::as_str);
    quantity.is_some_and(|quantity| quantity != "0" && !quantity.starts_with('-'))
}

fn only_owner(mut item: Object) -> Item {
    item.retain(|name, _| ["owner", "lastBlock"].contains(&name.as_str()));
    item.insert("quantity".to_owned(), "1".into());
    Item { object: item, position: Position(vec![OrderValue::Int(IN_UNIQUE), OrderValue::Int(0)]) }
}

async fn transfers(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let Some(collection) = data.id(call.address("address")?).await? else {
        call.position(&NFT_TRANSFER_LIST.kinds())?;
        return Ok(call.reply(Vec::new(), None));
    };
    let params = params![collection, call.amount("id")?];
    let filter = "contract_address = $1 AND token_id = $2".to_owned();
    let query = RowQuery { filter, ..RowQuery::key("", params) };
    let (mut items, next) = call.page_of(&NFT_TRANSFER_LIST, &query, |_| true).await?;
    data.add_hashes(&mut items).await?;
    Ok(call.reply(items, next))
}
