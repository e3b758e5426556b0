//! Contracts: their deployer and deployment, and how their code changed.
//!
//! Guarantees: facts that no block contains are null, and so is code that was never fetched from a node. Leaves to
//! others: fetching code (`contract_code_worker`) and interpreting it.

use alloy_primitives::{Address, keccak256};
use bytes::Bytes;
use logmill_io::params;
use logmill_pipeline::async_workers::contract_code::CODE;
use logmill_pipeline::observe::AnswerStatus;
use logmill_pipeline::processors::ProcessorName;
use logmill_pipeline::processors::meta::{CONTRACT_VERSIONS, SMART_CONTRACTS};
use serde_json::{Value as Json, json};

use super::data::{BLOCK, Data, HASH, TIME, TX_INDEX};
use super::endpoint::{Call, Endpoint, LIMIT_DEFAULT, Reply, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{self, Direction, List, RowQuery};
use super::param::{Param, ParamKind, required};
use super::record::{Form, Object, Record, address, bytes, column, computed};

/// Maximum size of code in a response. No chain allows contracts of this size.
const CODE_BYTES_MAX: usize = 256 * 1024;

static DEPLOYMENT: Record = Record {
    name: "Deployment",
    about: "The deployment of a contract.",
    base: None,
    fields: &[
        column("creator", Form::Address, "creator", "the sender of the transaction").or_null(),
        column("blockNumber", Form::Number, "created_height", "block number"),
        TX_INDEX,
        HASH,
        column("initCodeHash", Form::Bytes, "init_code_hash", "hash of the init code"),
        column("kind", Form::Text, "kind", "`CONTRACT`, `PROXY` or `MINIMAL_PROXY`"),
        column(
            "success",
            Form::Flag,
            "status",
            "whether the deployment succeeded, according to the receipt",
        )
        .or_null(),
    ],
};

static VERSION: Record = Record {
    name: "ContractVersion",
    about: "A change of a contract's code.",
    base: None,
    fields: &[
        BLOCK,
        column(
            "logIndex",
            Form::Number,
            "event_index",
            "index of the log in the block; -1 for the deployment",
        ),
        TX_INDEX,
        HASH,
        column(
            "kind",
            Form::Text,
            "kind",
            "`DEPLOYED`, `UPGRADED`, `BEACON_UPGRADED` or `DIAMOND_CUT`",
        ),
        column("implementation", Form::Address, "implementation", "address of the implementation")
            .or_null(),
        column("initCodeHash", Form::Bytes, "init_code_hash", "hash of the init code").or_null(),
        column(
            "initCodeBytes",
            Form::Number,
            "init_code_bytes",
            "length of the init code, in bytes",
        )
        .or_null(),
        TIME,
    ],
};

static CODE_FACTS: Record = Record {
    name: "ContractCodeFacts",
    about: "The code of a contract, as a node returned it at a block. A contract that destroyed itself has none.",
    base: None,
    fields: &[
        computed(
            "hash",
            Form::Bytes,
            "hash of the code; null if the code was too large to be kept",
        )
        .or_null(),
        computed(
            "bytes",
            Form::Number,
            "length in bytes; null if the code was too large to be kept",
        )
        .or_null(),
        computed("observedBlock", Form::Number, "the block at which the code was read"),
    ],
};

static CODE_WHOLE: Record = Record {
    name: "ContractCode",
    about: "The code of a contract, as a node returned it at a block.",
    base: Some(&CODE_FACTS),
    fields: &[
        computed("address", Form::Address, "the contract"),
        computed("code", Form::Bytes, "the code; null if it has more than 262144 bytes").or_null(),
    ],
};

static CONTRACT: Record = Record {
    name: "Contract",
    about: "A contract that a transaction deployed, or that logged a change of its code.",
    base: None,
    fields: &[
        computed("address", Form::Address, "the contract"),
        computed("deployment", Form::Object(&DEPLOYMENT), "the deployment; null if it is in no covered block")
            .or_null(),
        computed(
            "code",
            Form::Object(&CODE_FACTS),
            "facts about the code; null if it was not fetched yet, or no transaction created the contract",
        )
        .or_null(),
        computed("versions", Form::List(&Form::Object(&VERSION)), "the newest changes of the code"),
        computed("moreVersions", Form::Flag, "whether there are more; the path `…/versions` lists all"),
    ],
};

static VERSIONS: List = List {
    table: &CONTRACT_VERSIONS,
    record: &VERSION,
    order: &["block_height", "event_index"],
    direction: Direction::Down,
};

const CONTRACT_PARAM: Param = required("address", ParamKind::Address, "the contract");

pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "contract",
        path: "/contracts/{address}",
        summary: "A contract and the newest changes of its code.",
        needs: &[ProcessorName::Meta],
        uses: &[ProcessorName::Evm],
        params: &[CONTRACT_PARAM],
        shape: Shape::One(&CONTRACT),
        run: |call| Box::pin(contract(call)),
    },
    Endpoint {
        id: "contract_code",
        path: "/contracts/{address}/code",
        summary: "The code of a contract that a transaction created, as a node returned it.",
        needs: &[ProcessorName::Meta],
        uses: &[],
        params: &[CONTRACT_PARAM],
        shape: Shape::One(&CODE_WHOLE),
        run: |call| Box::pin(code(call)),
    },
    Endpoint {
        id: "contract_versions",
        path: "/contracts/{address}/versions",
        summary: "The changes of a contract's code, newest first.",
        needs: &[ProcessorName::Meta],
        uses: &[ProcessorName::Evm],
        params: &[CONTRACT_PARAM],
        shape: Shape::Page(&VERSION),
        run: |call| Box::pin(versions(call)),
    },
];

async fn contract(call: &Call) -> ApiResult<Reply> {
    let (data, of) = (call.data()?, call.address("address")?);
    let unknown = || ApiError::not_found("no covered block mentions this contract");
    let id = data.id(of).await?.ok_or_else(unknown)?;
    let query = || RowQuery::key("address = $1", params![id]);
    let deployment = list::row(data, (&SMART_CONTRACTS, &DEPLOYMENT), query()).await?;
    let want = LIMIT_DEFAULT + 1;
    let found = VERSIONS.scan(data, &query(), VERSIONS.start(), want, |_| true).await?;
    let (mut versions, next) = found.page(LIMIT_DEFAULT);
    if deployment.is_none() && versions.is_empty() {
        return Err(unknown());
    }
    data.add_hashes(&mut versions).await?;
    let mut deployment: Vec<_> = deployment.into_iter().collect();
    data.add_hashes(&mut deployment).await?;
    let code = observed(data, of).await?;
    Ok(Reply::One(Object::from_iter([
        ("address".to_owned(), address(&of)),
        ("deployment".to_owned(), json!(deployment.first())),
        ("code".to_owned(), json!(code.map(|code| code.facts))),
        ("versions".to_owned(), json!(versions)),
        ("moreVersions".to_owned(), next.is_some().into()),
    ])))
}

/// Code as reported by a node.
struct ObservedCode {
    facts: Object,
    code: Option<Bytes>,
}

/// The newest observed code of a contract; `None` if it was never fetched.
async fn observed(data: &Data, contract: Address) -> ApiResult<Option<ObservedCode>> {
    let text = format!(
        "SELECT block, status, value FROM observation
         WHERE chain_id = $1 AND kind = '{CODE}' AND subject = $2 ORDER BY block DESC LIMIT 1"
    );
    let params = vec![data.chain_param()?, contract.as_slice().into()];
    let Some(answer) = data.optional(&text, params).await? else {
        return Ok(None);
    };
    let Some(row) = answer.rows.first() else {
        return Ok(None);
    };
    let (block, status) = (row.int(0)?, row.int(1)?);
    let is_known =
        [AnswerStatus::Ok, AnswerStatus::Empty].iter().any(|known| known.number() == status);
    let code = is_known.then(|| row.blob(2)).transpose()?;
    let hash = code.as_ref().map(keccak256);
    Ok(Some(ObservedCode {
        facts: Object::from_iter([
            ("hash".to_owned(), json!(hash)),
            ("bytes".to_owned(), json!(code.as_ref().map(|code| code.len()))),
            ("observedBlock".to_owned(), block.into()),
        ]),
        code,
    }))
}

async fn code(call: &Call) -> ApiResult<Reply> {
    let (data, of) = (call.data()?, call.address("address")?);
    let unknown = || ApiError::not_found("the code of this contract has not been fetched");
    let ObservedCode { mut facts, code } = observed(data, of).await?.ok_or_else(unknown)?;
    let code = code.filter(|code| code.len() <= CODE_BYTES_MAX);
    facts.insert("address".to_owned(), address(&of));
    facts.insert("code".to_owned(), code.map_or(Json::Null, |code| bytes(&code)));
    Ok(Reply::One(facts))
}

async fn versions(call: &Call) -> ApiResult<Reply> {
    let data = call.data()?;
    let Some(id) = data.id(call.address("address")?).await? else {
        call.position(&VERSIONS.kinds())?;
        return Ok(call.reply(Vec::new(), None));
    };
    let query = RowQuery::key("address = $1", params![id]);
    let (mut items, next) = call.page_of(&VERSIONS, &query, |_| true).await?;
    data.add_hashes(&mut items).await?;
    Ok(call.reply(items, next))
}
