//! Collections of unique and semi-fungible tokens, and the transfers of their items.
//!
//! Guarantees: none beyond those of lists. Leaves to others: the items ([`super::items`]).

use logmill_io::params;
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::token::{NFT_COLLECTIONS, NFT_TRANSFERS};

use super::data::{BLOCK, Data, HASH, LOG_INDEX, SYMBOL, TIME, TX_INDEX};
use super::endpoint::{Call, Endpoint, Reply, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{self, Direction, List, RowQuery};
use super::param::{Param, ParamKind, required};
use super::record::{Form, Object, Record, column, computed};
use super::tokens::{TRANSFER_KINDS, add_creation, add_metadata};

pub(super) const STANDARDS: Form = Form::Word(&[(721, "erc721"), (1155, "erc1155")]);

pub(super) static NFT_TRANSFER: Record = Record {
    name: "NftTransfer",
    about: "A transfer of an item of a collection.",
    base: None,
    fields: &[
        BLOCK,
        LOG_INDEX,
        column("batchIndex", Form::Number, "batch_index", "index within its log"),
        TX_INDEX,
        HASH,
        column("collection", Form::Address, "contract_address", "the collection"),
        column("itemId", Form::Amount, "token_id", "id of the item"),
        column("from", Form::Address, "from_address", "the sender; the zero address for a mint"),
        column("to", Form::Address, "to_address", "the recipient; the zero address for a burn"),
        column("quantity", Form::Amount, "quantity", "number of items transferred"),
        column("standard", STANDARDS, "standard", "token standard of the event"),
        column("kind", TRANSFER_KINDS, "kind", "kind of transfer"),
        TIME,
    ],
};

static COLLECTION: Record = Record {
    name: "Collection",
    about: "A collection with at least one transfer.",
    base: None,
    fields: &[
        column("address", Form::Address, "contract_address", "its contract"),
        column(
            "standard",
            STANDARDS,
            "standard",
            "token standard of its events; erc1155 if there are both",
        ),
        computed("name", Form::Text, "name that the contract reports").or_null(),
        SYMBOL,
        column("firstBlock", Form::Number, "first_seen_height", "block of the first transfer"),
        column("lastBlock", Form::Number, "last_seen_height", "block of the last transfer"),
        column("transferCount", Form::Number, "transfer_count", "number of transfers"),
        column("minted", Form::Amount, "minted", "number of items minted"),
        column("burned", Form::Amount, "burned", "number of items burned"),
    ],
};

static COLLECTION_DETAIL: Record = Record {
    name: "CollectionDetail",
    about: "A collection with at least one transfer.",
    base: Some(&COLLECTION),
    fields: &[
        computed("createdBlock", Form::Number, "block in which the contract was created, if known")
            .or_null(),
        computed("complete", Form::Flag, "whether the covered blocks include its whole life"),
    ],
};

static COLLECTIONS: List = List {
    table: &NFT_COLLECTIONS,
    record: &COLLECTION,
    order: &["contract_address"],
    direction: Direction::Down,
};

pub(super) static NFT_TRANSFER_LIST: List = List {
    table: &NFT_TRANSFERS,
    record: &NFT_TRANSFER,
    order: &["block_height", "event_index", "batch_index"],
    direction: Direction::Down,
};

pub(super) const COLLECTION_PARAM: Param =
    required("address", ParamKind::Address, "the collection's contract");

pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "collections",
        path: "/collections",
        summary: "The collections, most recently seen first.",
        needs: &[ProcessorName::Token],
        uses: &[],
        params: &[],
        shape: Shape::Page(&COLLECTION),
        run: |call| Box::pin(collections(call)),
    },
    Endpoint {
        id: "collection",
        path: "/collections/{address}",
        summary: "A collection.",
        needs: &[ProcessorName::Token],
        uses: &[ProcessorName::Meta],
        params: &[COLLECTION_PARAM],
        shape: Shape::One(&COLLECTION_DETAIL),
        run: |call| Box::pin(collection(call)),
    },
    Endpoint {
        id: "collection_transfers",
        path: "/collections/{address}/transfers",
        summary: "The transfers of a collection's items, newest first.",
        needs: &[ProcessorName::Token],
        uses: &[ProcessorName::Evm],
        params: &[COLLECTION_PARAM],
        shape: Shape::Page(&NFT_TRANSFER),
        run: |call| Box::pin(transfers(call)),
    },
];

async fn collections(call: &Call) -> ApiResult<Reply> {
    let (mut items, next) = call.page_of(&COLLECTIONS, &RowQuery::default(), |_| true).await?;
    add_names(call.data()?, &mut items).await?;
    Ok(call.reply(items, next))
}

/// Adds the metadata that collections report about themselves; they have no decimals.
async fn add_names(data: &Data, items: &mut [Object]) -> ApiResult<()> {
    add_metadata(data, items).await?;
    items.iter_mut().for_each(|item| drop(item.remove("decimals")));
    Ok(())
}

async fn collection(call: &Call) -> ApiResult<Reply> {
    let (data, address) = (call.data()?, call.address("address")?);
    let unknown = || ApiError::not_found("no covered block has a transfer of this collection");
    let id = data.id(address).await?.ok_or_else(unknown)?;
    let query = RowQuery::key("contract_address = $1", params![id]);
    let found = list::row(data, (&NFT_COLLECTIONS, &COLLECTION), query).await?;
    let mut found = [found.ok_or_else(unknown)?];
    add_names(data, &mut found).await?;
    let [mut collection] = found;
    add_creation(data, ProcessorName::Token, address, &mut collection).await?;
    Ok(Reply::One(collection))
}

async fn transfers(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let Some(id) = data.id(call.address("address")?).await? else {
        call.position(&NFT_TRANSFER_LIST.kinds())?;
        return Ok(call.reply(Vec::new(), None));
    };
    let query =
        RowQuery { filter: "contract_address = $1".to_owned(), ..RowQuery::key("", params![id]) };
    let (mut items, next) = call.page_of(&NFT_TRANSFER_LIST, &query, |_| true).await?;
    data.add_hashes(&mut items).await?;
    Ok(call.reply(items, next))
}
