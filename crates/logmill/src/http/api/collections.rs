//! Collections of unique and semi-fungible tokens: which there are, and how their items moved.
//!
//! Guarantees: none beyond those of lists. Leaves to others: the items ([`super::items`]).

use logmill_io::params;
use logmill_pipeline::processors::token::{NFT_COLLECTIONS, NFT_TRANSFERS};

use super::call::{Call, Reply};
use super::data::{BLOCK, Data, HASH, LOG_INDEX, SYMBOL, TIME, TX_INDEX};
use super::endpoint::{Endpoint, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{self, Ask, Direction, List};
use super::param::{Param, ParamKind, required};
use super::record::{Form, Object, Record, column, computed};
use super::tokens::{TRANSFER_KINDS, add_creation, add_metadata};

/// The standards of collections.
pub(super) const STANDARDS: Form = Form::Word(&[(721, "erc721"), (1155, "erc1155")]);

/// A transfer of a unique or semi-fungible token.
pub(super) static NFT_TRANSFER: Record = Record {
    name: "NftTransfer",
    about: "A transfer of an item of a collection.",
    base: None,
    fields: &[
        BLOCK,
        LOG_INDEX,
        column("batchIndex", Form::Number, "batch_index", "its position in its log"),
        TX_INDEX,
        HASH,
        column("collection", Form::Address, "contract_address", "the collection"),
        column("itemId", Form::Amount, "token_id", "the item"),
        column("from", Form::Address, "from_address", "who gave; the zero address for a mint"),
        column("to", Form::Address, "to_address", "who got; the zero address for a burn"),
        column("quantity", Form::Amount, "quantity", "how many"),
        column("standard", STANDARDS, "standard", "of its event"),
        column("kind", TRANSFER_KINDS, "kind", "what it is"),
        TIME,
    ],
};

static COLLECTION: Record = Record {
    name: "Collection",
    about: "A collection whose items were seen to move.",
    base: None,
    fields: &[
        column("address", Form::Address, "contract_address", "its contract"),
        column("standard", STANDARDS, "standard", "of its events; erc1155 if of both"),
        computed("name", Form::Text, "what it calls itself").or_null(),
        SYMBOL,
        column("firstBlock", Form::Number, "first_seen_height", "of its first transfer"),
        column("lastBlock", Form::Number, "last_seen_height", "of its last transfer"),
        column("transferCount", Form::Number, "transfer_count", "how many transfers there were"),
        column("minted", Form::Amount, "minted", "how many items came to be in them"),
        column("burned", Form::Amount, "burned", "how many items ceased to be in them"),
    ],
};

static COLLECTION_DETAIL: Record = Record {
    name: "CollectionDetail",
    about: "A collection whose items were seen to move.",
    base: Some(&COLLECTION),
    fields: &[
        computed("createdBlock", Form::Number, "when its contract was created, if known").or_null(),
        computed("complete", Form::Flag, "whether the covered blocks have all of its life"),
    ],
};

static COLLECTIONS: List = List {
    table: &NFT_COLLECTIONS,
    record: &COLLECTION,
    order: &["contract_address"],
    direction: Direction::Down,
};

/// Transfers of items, newest first.
pub(super) static NFT_TRANSFER_LIST: List = List {
    table: &NFT_TRANSFERS,
    record: &NFT_TRANSFER,
    order: &["block_height", "event_index", "batch_index"],
    direction: Direction::Down,
};

/// The collection of a path.
pub(super) const COLLECTION_PARAM: Param =
    required("address", ParamKind::Address, "the collection's contract");

/// The paths of this file.
pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "collections",
        path: "/collections",
        summary: "The collections, those seen last first.",
        needs: &["token_worker"],
        uses: &[],
        params: &[],
        shape: Shape::Page(&COLLECTION),
        run: |call| Box::pin(collections(call)),
    },
    Endpoint {
        id: "collection",
        path: "/collections/{address}",
        summary: "A collection.",
        needs: &["token_worker"],
        uses: &["meta_worker"],
        params: &[COLLECTION_PARAM],
        shape: Shape::One(&COLLECTION_DETAIL),
        run: |call| Box::pin(collection(call)),
    },
    Endpoint {
        id: "collection_transfers",
        path: "/collections/{address}/transfers",
        summary: "The transfers of a collection's items, newest first.",
        needs: &["token_worker"],
        uses: &["evm_worker"],
        params: &[COLLECTION_PARAM],
        shape: Shape::Page(&NFT_TRANSFER),
        run: |call| Box::pin(transfers(call)),
    },
];

async fn collections(call: &Call) -> ApiResult<Reply> {
    let (mut items, next) = call.stretch(&COLLECTIONS, &Ask::default(), |_| true).await?;
    add_names(call.data()?, &mut items).await?;
    Ok(call.reply(items, next))
}

/// Adds what collections say of themselves; they have no decimals.
async fn add_names(data: &Data, items: &mut [Object]) -> ApiResult<()> {
    add_metadata(data, items).await?;
    items.iter_mut().for_each(|item| drop(item.remove("decimals")));
    Ok(())
}

async fn collection(call: &Call) -> ApiResult<Reply> {
    let (data, address) = (call.data()?, call.address("address")?);
    let unknown = || ApiError::not_found("no covered block has a transfer of such a collection");
    let id = data.id(address).await?.ok_or_else(unknown)?;
    let ask = Ask::key("contract_address = $1", params![id]);
    let found = list::row(data, (&NFT_COLLECTIONS, &COLLECTION), ask).await?;
    let mut found = [found.ok_or_else(unknown)?];
    add_names(data, &mut found).await?;
    let [mut collection] = found;
    add_creation(data, "token_worker", address, &mut collection).await?;
    Ok(Reply::One(collection))
}

async fn transfers(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let Some(id) = data.id(call.address("address")?).await? else {
        call.position(&NFT_TRANSFER_LIST.kinds())?;
        return Ok(call.reply(Vec::new(), None));
    };
    let ask = Ask { filter: "contract_address = $1".to_owned(), ..Ask::key("", params![id]) };
    let (mut items, next) = call.stretch(&NFT_TRANSFER_LIST, &ask, |_| true).await?;
    data.add_hashes(&mut items).await?;
    Ok(call.reply(items, next))
}
