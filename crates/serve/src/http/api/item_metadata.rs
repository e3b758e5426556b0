//! Metadata of items (names, pictures, traits), where a worker has fetched it.
//!
//! Guarantees: without that worker every field is null. Leaves to others: fetching, and sanitizing: the texts are
//! untrusted and must not be rendered as markup.

use std::collections::BTreeMap;

use alloy_primitives::Address;
use logmill_io::{Amount, Row, Value};
use serde_json::{Value as Json, json};

use super::data::Data;
use super::error::ApiResult;
use super::record::{Form, Object, Record, address_in, bytes, column};

pub(super) static ITEM_METADATA: Record = Record {
    name: "ItemMetadata",
    about: "Metadata of an item. The texts are untrusted: render them as plain text, never as markup.",
    base: None,
    fields: &[
        column("name", Form::Text, "name", "name").or_null(),
        column("description", Form::Text, "description", "description").or_null(),
        column("image", Form::Text, "image", "URL of the image").or_null(),
        column("animationUrl", Form::Text, "animation_url", "URL of the animation").or_null(),
        column("externalUrl", Form::Text, "external_url", "URL of more information").or_null(),
        column("uri", Form::Text, "uri", "URI of the metadata, as the contract reports it")
            .or_null(),
        column("traits", Form::Text, "traits", "traits, as a JSON list").or_null(),
        column("error", Form::Text, "metadata_error", "why the metadata could not be read")
            .or_null(),
        column(
            "observedBlock",
            Form::Number,
            "observed_height",
            "block at which the contract was called",
        )
        .or_null(),
    ],
};

/// Contract, and id as in JSON.
type Item = (Address, String);

fn item(object: &Object) -> Option<Item> {
    Some((address_in(object, "collection")?, object.get("id")?.as_str()?.to_owned()))
}

async fn known(data: &Data, items: &[Object]) -> ApiResult<BTreeMap<Item, Object>> {
    let mut wanted: Vec<Item> = items.iter().filter_map(item).collect();
    let Some(last) = wanted.last().cloned() else {
        return Ok(BTreeMap::new());
    };
    // Padded to a power of two, so that there are few distinct statements.
    wanted.resize(wanted.len().next_power_of_two(), last);
    let mut params: Vec<Value> = vec![data.chain_param()?];
    let mut rows = Vec::new();
    for (collection, id) in &wanted {
        let amount: Amount = id.parse()?;
        params.push(collection.as_slice().into());
        params.push(amount.into());
        let (collection, id) = (params.len() - 1, params.len());
        rows.push(format!("(CAST(${collection} AS {{bytes}}), CAST(${id} AS {{amount}}))"));
    }
    let (columns, rows) = (ITEM_METADATA.select(), rows.join(", "));
    let text = format!(
        "SELECT {columns}, s.contract_address, s.nft_id FROM nft_items AS s
         WHERE s.chain_id = $1 AND (s.contract_address, s.nft_id) IN (VALUES {rows})"
    );
    let Some(answer) = data.optional(&text, params).await? else {
        return Ok(BTreeMap::new());
    };
    let width = ITEM_METADATA.width();
    let row = |row: &Row| {
        let collection = json!({"of": bytes(&row.blob(width)?)});
        let collection = collection.as_object().and_then(|object| address_in(object, "of"));
        let item = (collection.unwrap_or_default(), row.amount(width + 1)?.to_string());
        Ok((item, ITEM_METADATA.read(row)?))
    };
    answer.rows.iter().map(row).collect()
}

pub(super) async fn add_names(data: &Data, items: &mut [Object]) -> ApiResult<()> {
    let known = known(data, items).await?;
    for object in items {
        let metadata = item(object).and_then(|item| known.get(&item));
        for field in ["name", "image"] {
            let value = metadata.and_then(|metadata| metadata.get(field)).cloned();
            object.insert(field.to_owned(), value.unwrap_or_default());
        }
    }
    Ok(())
}

/// Adds all metadata to one item.
pub(super) async fn add_all(data: &Data, object: &mut Object) -> ApiResult<()> {
    add_names(data, std::slice::from_mut(object)).await?;
    let known = known(data, std::slice::from_ref(object)).await?;
    let metadata = item(object).and_then(|item| known.get(&item).cloned());
    object.insert("metadata".to_owned(), metadata.map_or(Json::Null, Json::Object));
    Ok(())
}
