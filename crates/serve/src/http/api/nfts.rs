//! The items that an account owns, across all collections.
//!
//! Guarantees: items of which nothing is left are not shown; a page reads a bounded number of rows. Leaves to others:
//! the collections.

use std::collections::BTreeSet;

use logmill_io::{Amount, params};
use logmill_pipeline::derive::Kind;
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::nft_ownership::{NFT_BALANCES, NFT_OWNERSHIP};

use super::accounts::ACCOUNT_PARAM;
use super::endpoint::{Call, Endpoint, Reply, Shape};
use super::error::ApiResult;
use super::item_metadata;
use super::items::{IN_MULTI, IN_UNIQUE, is_some_quantity};
use super::list::{Direction, List, RowQuery, merged};
use super::position::{OrderValue, Position};
use super::record::{Form, Object, Record, address_in, column, computed};

static UNIQUE_ITEM: Record = Record {
    name: "OwnedUniqueItem",
    about: "",
    base: None,
    fields: &[
        column("collection", Form::Address, "contract_address", ""),
        column("id", Form::Amount, "nft_id", ""),
        column("lastBlock", Form::Number, "last_height", ""),
    ],
};

static MULTI_ITEM: Record = Record {
    name: "OwnedMultiItem",
    about: "",
    base: Some(&UNIQUE_ITEM),
    fields: &[column("quantity", Form::Amount, "quantity", "")],
};

static OWNED_ITEM: Record = Record {
    name: "OwnedItem",
    about: "An item that an account owns.",
    base: None,
    fields: &[
        computed("collection", Form::Address, "the collection"),
        computed("id", Form::Amount, "the item's id"),
        computed("standard", Form::Text, "`erc721` or `erc1155`"),
        computed("quantity", Form::Amount, "quantity owned, according to the covered blocks"),
        computed("lastBlock", Form::Number, "block of the last change"),
        computed(
            "complete",
            Form::Flag,
            "whether the covered blocks include the collection's whole life",
        ),
        computed("name", Form::Text, "name in the metadata").or_null(),
        computed("image", Form::Text, "image URL in the metadata").or_null(),
    ],
};

static UNIQUE: List = List {
    table: &NFT_OWNERSHIP,
    record: &UNIQUE_ITEM,
    order: &["contract_address", "nft_id"],
    direction: Direction::Up,
};

static MULTI: List = List {
    table: &NFT_BALANCES,
    record: &MULTI_ITEM,
    order: &["contract_address", "nft_id"],
    direction: Direction::Up,
};

pub(super) static ENDPOINTS: &[Endpoint] = &[Endpoint {
    id: "account_nfts",
    path: "/accounts/{address}/nfts",
    summary: "The items that an account owns, ordered by collection and id.",
    needs: &[ProcessorName::NftOwnership],
    uses: &[ProcessorName::Meta],
    params: &[ACCOUNT_PARAM],
    shape: Shape::Page(&OWNED_ITEM),
    run: |call| Box::pin(nfts(call)),
}];

/// Column kinds of a position: collection, item, table.
const KINDS: [Kind; 3] = [Kind::Int, Kind::Amount, Kind::Int];

async fn nfts(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let start = || {
        let (collection, item) = (OrderValue::Int(i64::MIN), OrderValue::Amount(Amount::MIN));
        Position(vec![collection, item, OrderValue::Int(IN_MULTI)])
    };
    let from = call.position(&KINDS)?.unwrap_or_else(start);
    let Some(owner) = data.id(call.address("address")?).await? else {
        return Ok(call.reply(Vec::new(), None));
    };
    let want = call.limit() + 1;
    let behind = Position(from.0[..2].to_vec());
    let filter = RowQuery { filter: "owner = $1".to_owned(), ..RowQuery::key("", params![owner]) };
    let mut unique = UNIQUE.scan(data, &filter, behind.clone(), want, |_| true).await?;
    let key = RowQuery::key("owner = $1", params![owner]);
    let mut multi = MULTI.scan(data, &key, behind.clone(), want, is_some_quantity).await?;
    if from.0.get(2) == Some(&OrderValue::Int(IN_UNIQUE)) {
        // The item may be in both tables. If the position is its row in the first table, its row in the second is still
        // to come.
        let same = "owner = $1 AND contract_address = $2 AND nft_id = $3";
        let mut params = params![owner];
        params.extend(behind.0.iter().map(OrderValue::value));
        let same = MULTI.rows(data, &RowQuery::key(same, params), &MULTI.start(), 1).await?;
        multi.items.splice(..0, same.into_iter().filter(|item| is_some_quantity(&item.object)));
    }
    unique.in_table(IN_UNIQUE);
    multi.in_table(IN_MULTI);
    for item in &mut unique.items {
        item.object.insert("standard".to_owned(), "erc721".into());
        item.object.insert("quantity".to_owned(), "1".into());
    }
    for item in &mut multi.items {
        item.object.insert("standard".to_owned(), "erc1155".into());
    }
    let (mut items, next) = merged(unique, multi).page(call.limit());
    let collection = |item: &Object| address_in(item, "collection");
    let collections: BTreeSet<_> = items.iter().filter_map(collection).collect();
    let complete = data.complete(ProcessorName::NftOwnership, collections).await?;
    for item in &mut items {
        let is_complete = collection(item).is_some_and(|one| complete.contains(&one));
        item.insert("complete".to_owned(), is_complete.into());
    }
    item_metadata::add_names(data, &mut items).await?;
    Ok(call.reply(items, next))
}
