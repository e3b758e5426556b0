//! Contracts: who deployed them and how, and how their code changed since.
//!
//! Guarantees: what no block tells is null, and so is code that no node was asked for. Leaves to others: asking for
//! code (`contract_code_worker`), and what it says.

use alloy_primitives::{Address, keccak256};
use bytes::Bytes;
use logmill_io::params;
use logmill_pipeline::async_workers::contract_code::CODE;
use logmill_pipeline::observe::Status;
use logmill_pipeline::processors::meta::{CONTRACT_VERSIONS, SMART_CONTRACTS};
use serde_json::{Value as Json, json};

use super::call::{Call, LIMIT_DEFAULT, Reply};
use super::data::{BLOCK, Data, HASH, TIME, TX_INDEX};
use super::endpoint::{Endpoint, Shape};
use super::error::{ApiError, ApiResult};
use super::list::{self, Ask, Direction, List};
use super::param::{Param, ParamKind, required};
use super::record::{Form, Object, Record, address, bytes, column, computed};

/// The most bytes of code that an answer has. No chain lets a contract have as many.
const CODE_BYTES_MAX: usize = 256 * 1024;

static DEPLOYMENT: Record = Record {
    name: "Deployment",
    about: "How a contract came to be.",
    base: None,
    fields: &[
        column("creator", Form::Address, "creator", "who sent the transaction").or_null(),
        column("blockNumber", Form::Number, "created_height", "the number of its block"),
        TX_INDEX,
        HASH,
        column("initCodeHash", Form::Bytes, "init_code_hash", "the hash of its init code"),
        column("kind", Form::Text, "kind", "`CONTRACT`, `PROXY` or `MINIMAL_PROXY`"),
        column("success", Form::Flag, "status", "whether the receipt says that it succeeded")
            .or_null(),
    ],
};

static VERSION: Record = Record {
    name: "ContractVersion",
    about: "A change of a contract's code.",
    base: None,
    fields: &[
        BLOCK,
        column("logIndex", Form::Number, "event_index", "its log's position; -1 if deployed"),
        TX_INDEX,
        HASH,
        column(
            "kind",
            Form::Text,
            "kind",
            "`DEPLOYED`, `UPGRADED`, `BEACON_UPGRADED` or `DIAMOND_CUT`",
        ),
        column("implementation", Form::Address, "implementation", "where the code is").or_null(),
        column("initCodeHash", Form::Bytes, "init_code_hash", "the hash of its init code")
            .or_null(),
        column("initCodeBytes", Form::Number, "init_code_bytes", "how long that is").or_null(),
        TIME,
    ],
};

static CODE_FACTS: Record = Record {
    name: "ContractCodeFacts",
    about: "The code of a contract, as a node had it at a block. A contract that destroyed itself has none.",
    base: None,
    fields: &[
        computed("hash", Form::Bytes, "its hash; null if it is larger than what is kept").or_null(),
        computed("bytes", Form::Number, "how long it is; null if larger than what is kept")
            .or_null(),
        computed("observedBlock", Form::Number, "the block at which the node was asked"),
    ],
};

static CODE_WHOLE: Record = Record {
    name: "ContractCode",
    about: "The code of a contract, as a node had it at a block.",
    base: Some(&CODE_FACTS),
    fields: &[
        computed("address", Form::Address, "the contract"),
        computed("code", Form::Bytes, "the code; null if it has more than 262144 bytes").or_null(),
    ],
};

static CONTRACT: Record = Record {
    name: "Contract",
    about: "A contract that a transaction deployed, or that told of a change of its code.",
    base: None,
    fields: &[
        computed("address", Form::Address, "it"),
        computed("deployment", Form::Object(&DEPLOYMENT), "null if no covered block tells")
            .or_null(),
        computed(
            "code",
            Form::Object(&CODE_FACTS),
            "what is known of its code; null if no node was asked yet, or no transaction created it",
        )
        .or_null(),
        computed("versions", Form::List(&Form::Object(&VERSION)), "the newest changes"),
        computed("moreVersions", Form::Flag, "whether there are more: see `versions` below it"),
    ],
};

static VERSIONS: List = List {
    table: &CONTRACT_VERSIONS,
    record: &VERSION,
    order: &["block_height", "event_index"],
    direction: Direction::Down,
};

const CONTRACT_PARAM: Param = required("address", ParamKind::Address, "the contract");

/// The paths of this file.
pub(super) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        id: "contract",
        path: "/contracts/{address}",
        summary: "A contract, and the newest changes of its code.",
        needs: &["meta_worker"],
        uses: &["evm_worker"],
        params: &[CONTRACT_PARAM],
        shape: Shape::One(&CONTRACT),
        run: |call| Box::pin(contract(call)),
    },
    Endpoint {
        id: "contract_code",
        path: "/contracts/{address}/code",
        summary: "The code of a contract that a transaction created, as a node had it.",
        needs: &["meta_worker"],
        uses: &[],
        params: &[CONTRACT_PARAM],
        shape: Shape::One(&CODE_WHOLE),
        run: |call| Box::pin(code(call)),
    },
    Endpoint {
        id: "contract_versions",
        path: "/contracts/{address}/versions",
        summary: "How the code of a contract changed, newest first.",
        needs: &["meta_worker"],
        uses: &["evm_worker"],
        params: &[CONTRACT_PARAM],
        shape: Shape::Page(&VERSION),
        run: |call| Box::pin(versions(call)),
    },
];

async fn contract(call: &Call) -> ApiResult<Reply> {
    let (data, of) = (call.data()?, call.address("address")?);
    let unknown = || ApiError::not_found("no covered block tells of such a contract");
    let id = data.id(of).await?.ok_or_else(unknown)?;
    let ask = || Ask::key("address = $1", params![id]);
    let deployment = list::row(data, (&SMART_CONTRACTS, &DEPLOYMENT), ask()).await?;
    let want = LIMIT_DEFAULT + 1;
    let found = VERSIONS.stretch(data, &ask(), VERSIONS.start(), want, |_| true).await?;
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

/// Code that a node told.
struct Observed {
    facts: Object,
    code: Option<Bytes>,
}

/// The code of a contract, as a node had it last; none if none was asked.
async fn observed(data: &Data, contract: Address) -> ApiResult<Option<Observed>> {
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
    let is_told = [Status::Ok, Status::Empty].iter().any(|told| told.number() == status);
    let code = is_told.then(|| row.blob(2)).transpose()?;
    let hash = code.as_ref().map(keccak256);
    Ok(Some(Observed {
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
    let unknown = || ApiError::not_found("no node was asked for the code of such a contract");
    let Observed { mut facts, code } = observed(data, of).await?.ok_or_else(unknown)?;
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
    let ask = Ask::key("address = $1", params![id]);
    let (mut items, next) = call.stretch(&VERSIONS, &ask, |_| true).await?;
    data.add_hashes(&mut items).await?;
    Ok(call.reply(items, next))
}
