//! `Evidence`: the bytes under a block hash from which the proven part of a bill follows.
//!
//! A receipt holds the gas used in the block up to its transaction, so the gas of one transaction needs the receipt
//! before it too.
//!
//! Guarantees: facts decoded from evidence are those of the block it was taken from. Leaves to others: whether the
//! bytes belong to the block hash ([`crate::proof`]).

use alloy_consensus::{
    Eip658Value, Header as EvmHeader, ReceiptEnvelope, Transaction as _, TxEnvelope,
};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use logmill_chain::verify::encode_receipt;
use logmill_chain::{Block, BlockRef, Header, Log, Outcome, Receipt, Transaction, TransactionForm};
use logmill_chain::{TransactionView, blob_price};

use crate::error::{Error, Result};

/// Header, transaction and receipts, in the form that the chain hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub chain_id: u64,
    /// RLP.
    pub header: Bytes,
    /// Position of the transaction in its block.
    pub index: u64,
    /// EIP-2718 bytes.
    pub transaction: Bytes,
    /// EIP-2718 bytes.
    pub receipt: Bytes,
    /// The receipt before it; `None` for the first transaction.
    pub previous_receipt: Option<Bytes>,
}

/// What is known of a transaction and its effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionFacts {
    pub chain_id: u64,
    pub block: BlockRef,
    pub index: u64,
    pub hash: B256,
    /// 0 for a legacy one.
    pub tx_type: Option<u8>,
    pub nonce: Option<u64>,
    pub from: Option<Address>,
    /// `None` if it creates a contract.
    pub to: Option<Address>,
    pub created: Option<Address>,
    /// Accounts that signed a delegation (EIP-7702).
    pub authorities: Vec<Address>,
    pub value: U256,
    pub input: Bytes,
    /// `None` if the receipt does not say so: before Byzantium it holds a state root.
    pub succeeded: Option<bool>,
    pub gas_limit: Option<u64>,
    pub gas_used: Option<u64>,
    /// Price paid per gas.
    pub gas_price: Option<u128>,
    pub base_fee: Option<u64>,
    pub blob_gas_used: Option<u64>,
    pub blob_gas_price: Option<u128>,
    /// A rollup's fee for storing it on L1, as its node says.
    pub l1_fee: Option<U256>,
    /// In the order of the receipt.
    pub logs: Vec<Log>,
}

impl Evidence {
    /// The evidence of a transaction of a block; the reason if the block cannot provide it.
    pub fn of_block(chain_id: u64, block: &Block, index: usize) -> Result<Self, String> {
        let Header::Canonical(header) = &block.header else {
            return Err("the chain's headers have their own encoding".to_owned());
        };
        let transaction = block.transactions.get(index).map(|transaction| &transaction.form);
        let Some(TransactionForm::Canonical(transaction)) = transaction else {
            return Err("the transaction has a type of its chain's own".to_owned());
        };
        let encode = |receipt: &Receipt| {
            if receipt.outcome == Outcome::Unknown {
                return Err("the node has no receipts for this block".to_owned());
            }
            let mut out = Vec::new();
            encode_receipt(receipt, &mut out);
            Ok(Bytes::from(out))
        };
        let receipt = block.receipts.get(index).ok_or("the receipt is missing")?;
        let previous = index.checked_sub(1).map(|previous| &block.receipts[previous]);
        Ok(Self {
            chain_id,
            header: header.clone(),
            index: u64::try_from(index).unwrap_or(u64::MAX),
            transaction: transaction.clone(),
            receipt: encode(receipt)?,
            previous_receipt: previous.map(encode).transpose()?,
        })
    }

    /// Refuses a transaction that was signed for another chain. Only those from before EIP-155 do not name one.
    fn check_chain(&self) -> Result<()> {
        let envelope = TxEnvelope::decode_2718_exact(&self.transaction);
        let envelope = envelope.map_err(|error| Error::unreadable("the transaction", error))?;
        match envelope.chain_id() {
            Some(signed) if signed != self.chain_id => {
                let why = format!("it was signed for chain {signed}, not for {}", self.chain_id);
                Err(Error::unreadable("the transaction", why))
            }
            _ => Ok(()),
        }
    }

    pub fn decode(&self) -> Result<TransactionFacts> {
        let header = decode_header(&self.header)?;
        self.check_chain()?;
        let transaction = Transaction::canonical(self.transaction.clone());
        let view = TransactionView::read(&transaction, header.base_fee_per_gas);
        let view = view.map_err(|error| Error::unreadable("the transaction", error))?;
        let receipt = decode_receipt(&self.receipt)?;
        let before = match &self.previous_receipt {
            Some(previous) => decode_receipt(previous)?.cumulative_gas_used(),
            None => 0,
        };
        let gas_used = receipt.cumulative_gas_used().checked_sub(before);
        let gas_used = gas_used.ok_or_else(|| {
            Error::unreadable("the receipts", "the gas used before is more than the gas used after")
        })?;
        let block = BlockRef {
            number: header.number,
            hash: keccak256(&self.header),
            parent_hash: header.parent_hash,
            timestamp: header.timestamp,
        };
        let succeeded = match receipt.as_receipt().map(|receipt| receipt.status) {
            Some(Eip658Value::Eip658(status)) => Some(status),
            _ => None,
        };
        let logs = receipt.logs().iter().map(|log| Log {
            address: log.address,
            topics: log.topics().iter().copied().collect(),
            data: log.data.data.clone(),
        });
        let blob_gas_price = match view.blob_gas_used {
            Some(_) => blob_price_of(self.chain_id, &header),
            None => None,
        };
        Ok(TransactionFacts {
            chain_id: self.chain_id,
            block,
            index: self.index,
            hash: transaction.hash,
            authorities: view.authorities(self.chain_id),
            created: view.created().filter(|_| succeeded != Some(false)),
            tx_type: view.tx_type,
            nonce: view.nonce,
            from: view.from,
            to: view.to,
            value: view.value,
            input: view.input,
            succeeded,
            gas_limit: view.gas_limit,
            gas_used: Some(gas_used),
            gas_price: view.gas_price,
            base_fee: header.base_fee_per_gas,
            blob_gas_used: view.blob_gas_used,
            blob_gas_price,
            l1_fee: None,
            logs: logs.collect(),
        })
    }
}

impl TransactionFacts {
    /// What the stored block says of a transaction, including what only its node says.
    pub fn of_block(chain_id: u64, block: &Block, index: usize) -> Result<Self> {
        let wrong = |what: String| Error::Unbillable { block: block.at.number, index, what };
        let header = block.header.facts().map_err(|error| wrong(error.to_string()))?;
        let base_fee = header.base_fee_per_gas;
        let view = TransactionView::of_block(block, index, base_fee);
        let view = view.map_err(|error| wrong(error.to_string()))?;
        let receipt = block.receipts.get(index);
        let receipt = receipt.ok_or_else(|| wrong("its receipt is missing".to_owned()))?;
        let reported = receipt.facts().map_err(|error| wrong(error.to_string()))?;
        let succeeded = match receipt.outcome {
            Outcome::Status(status) => Some(status),
            Outcome::StateRoot(_) | Outcome::Unknown => None,
        };
        let excess = header.excess_blob_gas;
        let derived = excess
            .and_then(|excess| blob_price::blob_gas_price(chain_id, block.at.timestamp, excess));
        let blob_gas_used = view.blob_gas_used.or(reported.blob_gas_used).filter(|gas| *gas > 0);
        Ok(Self {
            chain_id,
            block: block.at,
            index: u64::try_from(index).unwrap_or(u64::MAX),
            hash: block.transactions[index].hash,
            authorities: view.authorities(chain_id),
            created: block.created_contract(index, &view).filter(|_| succeeded != Some(false)),
            gas_used: block.gas_used(index),
            gas_price: block.effective_gas_price(index, &view),
            tx_type: view.tx_type,
            nonce: view.nonce,
            from: view.from,
            to: view.to,
            value: view.value,
            input: view.input,
            succeeded,
            gas_limit: view.gas_limit,
            base_fee,
            blob_gas_used,
            blob_gas_price: blob_gas_used.and(derived.or(reported.blob_gas_price)),
            l1_fee: reported.l1_fee,
            logs: receipt.logs.clone(),
        })
    }

    /// Whether it changed anything but the sender's balance and nonce; `None` if that is unknown. A receipt from before
    /// Byzantium says nothing, but a transaction that failed has no logs.
    pub fn took_effect(&self) -> Option<bool> {
        self.succeeded.or_else(|| (!self.logs.is_empty()).then_some(true))
    }
}

fn blob_price_of(chain_id: u64, header: &EvmHeader) -> Option<u128> {
    blob_price::blob_gas_price(chain_id, header.timestamp, header.excess_blob_gas?)
}

pub(crate) fn decode_header(bytes: &Bytes) -> Result<EvmHeader> {
    let decoded = Header::Canonical(bytes.clone()).decode();
    let decoded = decoded.map_err(|error| Error::unreadable("the header", error))?;
    decoded.ok_or_else(|| Error::unreadable("the header", "it is not one of Ethereum's"))
}

fn decode_receipt(bytes: &Bytes) -> Result<ReceiptEnvelope> {
    let decoded = ReceiptEnvelope::decode_2718_exact(bytes);
    decoded.map_err(|error| Error::unreadable("a receipt", error))
}

#[cfg(test)]
mod tests {
    use logmill_chain::sim::{Shape, SimChain};

    use super::*;

    /// The id of simulated chains.
    const CHAIN: u64 = 1_337;

    #[test]
    fn evidence_says_what_its_block_says() {
        let chain = SimChain::new(3, Shape::mainnet());
        chain.grow(4);
        let mut transactions = 0;
        for number in 0..=4 {
            let block = chain.block(number).expect("grown");
            for index in 0..block.transactions.len() {
                let evidence = Evidence::of_block(CHAIN, &block, index).expect("canonical");
                let facts = evidence.decode().expect("decoded");
                assert_eq!(facts, TransactionFacts::of_block(CHAIN, &block, index).expect("facts"));
                transactions += 1;
            }
        }
        assert!(transactions > 100, "{transactions}");
    }

    #[test]
    fn hostile_bytes_are_errors() {
        let chain = SimChain::new(3, Shape::mainnet());
        chain.grow(2);
        let block = chain.block(2).expect("grown");
        let whole = Evidence::of_block(CHAIN, &block, 1).expect("canonical");
        for cut in [0, 1, 10, 50] {
            let short = |bytes: &Bytes| bytes.slice(..cut);
            let evidence = Evidence { header: short(&whole.header), ..whole.clone() };
            assert!(evidence.decode().is_err());
            let evidence = Evidence { transaction: short(&whole.transaction), ..whole.clone() };
            assert!(evidence.decode().is_err());
            let evidence = Evidence { receipt: short(&whole.receipt), ..whole.clone() };
            assert!(evidence.decode().is_err());
        }
        let swapped = Evidence {
            receipt: whole.previous_receipt.clone().expect("it has one"),
            previous_receipt: Some(whole.receipt.clone()),
            ..whole
        };
        assert!(swapped.decode().is_err(), "gas cannot become less");
    }
}
