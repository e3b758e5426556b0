//! Merkle proofs of a transaction and its receipts against a block header.
//!
//! The nodes of a proof are those from the root of the header's trie down to the leaf, which holds the value; the key
//! follows from the position of the transaction.
//!
//! Guarantees: what [`Proof::open`] returns is under the given block hash, or it is an error. Leaves to others: whether
//! that block hash is canonical (`Anchor` says what the signer knows about it).

use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::Decodable;
use alloy_trie::nodes::{RlpNode, TrieNode};
use alloy_trie::proof::ProofRetainer;
use alloy_trie::root::adjust_index_for_rlp;
use alloy_trie::{HashBuilder, Nibbles};
use logmill_chain::verify::encode_receipt;
use logmill_chain::{Block, ChainProfile, TransactionForm, VerifyLevel};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::evidence::{Evidence, decode_header};

/// Nodes of a proof at most; keys have at most 10 nibbles.
const NODES_MAX: usize = 12;

/// How a bill is proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Proof {
    /// By Merkle proofs against a header.
    #[serde(rename_all = "camelCase")]
    Mpt {
        /// RLP of the header; its hash is the block hash.
        header: Bytes,
        transaction: Vec<Bytes>,
        receipt: Vec<Bytes>,
        /// Proof of the receipt before it; absent for the first transaction of a block.
        previous_receipt: Option<Vec<Bytes>>,
    },
    /// Not at all.
    None { reason: String },
}

impl Proof {
    /// The proof of a transaction of a block, and its evidence. A block that is not fully verified has none.
    pub fn of_block(chain_id: u64, block: &Block, index: usize) -> (Self, Option<Evidence>) {
        if block.verified != VerifyLevel::Full {
            let reason = format!(
                "the block was verified with `{}` only: its receipts are not proven by its hash",
                block.verified
            );
            return (Self::None { reason }, None);
        }
        if !ChainProfile::of(chain_id).has_ethereum_rules() {
            let reason = "fees of this chain do not follow from its receipts".to_owned();
            return (Self::None { reason }, None);
        }
        match Evidence::of_block(chain_id, block, index) {
            Ok(evidence) => match Self::mpt(block, index, &evidence) {
                Ok(proof) => (proof, Some(evidence)),
                Err(reason) => (Self::None { reason }, None),
            },
            Err(reason) => (Self::None { reason }, None),
        }
    }

    fn mpt(block: &Block, index: usize, evidence: &Evidence) -> Result<Self, String> {
        let mut encoded = Vec::with_capacity(block.transactions.len());
        for transaction in &block.transactions {
            let TransactionForm::Canonical(bytes) = &transaction.form else {
                return Err("the block has transactions of the chain's own types".to_owned());
            };
            encoded.push(bytes.to_vec());
        }
        let transaction = paths(&encoded, &[index]).remove(0);
        let receipts = block.receipts.iter().map(|receipt| {
            let mut out = Vec::new();
            encode_receipt(receipt, &mut out);
            out
        });
        let indexes = [Some(index), index.checked_sub(1)];
        let indexes: Vec<usize> = indexes.into_iter().flatten().collect();
        let mut receipts = paths(&receipts.collect::<Vec<_>>(), &indexes).into_iter();
        let receipt = receipts.next().unwrap_or_default();
        Ok(Self::Mpt {
            header: evidence.header.clone(),
            transaction,
            receipt,
            previous_receipt: receipts.next(),
        })
    }

    /// The evidence in the proof, if all of it is under the block hash.
    pub fn open(&self, chain_id: u64, block_hash: B256, index: u64) -> Result<Option<Evidence>> {
        let Self::Mpt { header, transaction, receipt, previous_receipt } = self else {
            return Ok(None);
        };
        if keccak256(header) != block_hash {
            let why = format!("it hashes to {}, not to {block_hash}", keccak256(header));
            return Err(Error::unreadable("the header", why));
        }
        let decoded = decode_header(header)?;
        let previous = match (index.checked_sub(1), previous_receipt) {
            (Some(before), Some(nodes)) => {
                Some(leaf("the receipt before", decoded.receipts_root, before, nodes)?)
            }
            (None, None) => None,
            (Some(_), None) => {
                return Err(Error::unreadable("the receipt before", "its proof is missing"));
            }
            (None, Some(_)) => {
                return Err(Error::unreadable(
                    "the receipt before",
                    "the first has none before it",
                ));
            }
        };
        Ok(Some(Evidence {
            chain_id,
            header: header.clone(),
            index,
            transaction: leaf("the transaction", decoded.transactions_root, index, transaction)?,
            receipt: leaf("the receipt", decoded.receipts_root, index, receipt)?,
            previous_receipt: previous,
        }))
    }
}

/// The nodes from the root to each of the items, root first.
fn paths(items: &[Vec<u8>], indexes: &[usize]) -> Vec<Vec<Bytes>> {
    let keys: Vec<Nibbles> = indexes.iter().map(|index| key(*index as u64)).collect();
    let mut builder = HashBuilder::default().with_proof_retainer(ProofRetainer::new(keys.clone()));
    for at in 0..items.len() {
        let index = adjust_index_for_rlp(at, items.len());
        builder.add_leaf(key(index as u64), &items[index]);
    }
    let _ = builder.root();
    let nodes = builder.take_proof_nodes();
    let path = |key: &Nibbles| {
        let found = nodes.matching_nodes_sorted(key);
        found.into_iter().map(|(_, node)| node).collect()
    };
    keys.iter().map(path).collect()
}

fn key(index: u64) -> Nibbles {
    Nibbles::unpack(alloy_rlp::encode_fixed_size(&index))
}

/// Walks from the root to the leaf of an index, and returns its value.
fn leaf(what: &'static str, root: B256, index: u64, nodes: &[Bytes]) -> Result<Bytes> {
    let wrong = |why: &str| Error::unreadable(what, format!("its proof is wrong: {why}"));
    if nodes.len() > NODES_MAX {
        return Err(wrong("it has too many nodes"));
    }
    let mut key = key(index);
    let mut expected = RlpNode::word_rlp(&root);
    for (at, node) in nodes.iter().enumerate() {
        if RlpNode::from_rlp(node) != expected {
            return Err(wrong("a node is not the one that its parent names"));
        }
        let mut rest = &node[..];
        let decoded = TrieNode::decode(&mut rest);
        let decoded = decoded.map_err(|_| wrong("a node cannot be decoded"))?;
        match decoded {
            TrieNode::Leaf(leaf) if leaf.key == key && at + 1 == nodes.len() && rest.is_empty() => {
                return Ok(leaf.value.into());
            }
            TrieNode::Extension(extension) if key.starts_with(&extension.key) => {
                key = key.slice(extension.key.len()..);
                expected = extension.child;
            }
            TrieNode::Branch(branch) if !key.is_empty() => {
                let nibble = key.get_unchecked(0);
                let branch = branch.as_ref();
                let child = branch.children().find(|(at, _)| *at == nibble);
                let child = child.and_then(|(_, child)| child.cloned());
                expected = child.ok_or_else(|| wrong("it leads nowhere"))?;
                key = key.slice(1..);
            }
            _ => return Err(wrong("it leads to another key")),
        }
    }
    Err(wrong("it ends before the leaf"))
}

#[cfg(test)]
mod tests {
    use logmill_chain::sim::{Shape, SimChain};

    use super::*;

    /// Blocks with at least so many transactions: keys of one and of more bytes.
    fn blocks() -> Vec<Block> {
        let largest = |transactions: u32| {
            let shape = Shape { transactions, logs: 2 * transactions, ..Shape::sparse() };
            let chain = SimChain::new(3, shape);
            chain.grow(6);
            let made = (1..=6).map(|number| chain.block(number).expect("grown"));
            let block = made.max_by_key(|block| block.transactions.len()).expect("some");
            assert!(block.transactions.len() >= transactions as usize);
            let mut block = Block::clone(&block);
            logmill_chain::verify(&mut block, VerifyLevel::Full).expect("it is whole");
            block
        };
        [1, 2, 40, 128, 260].map(largest).into()
    }

    #[test]
    fn every_transaction_and_its_receipts_are_proven() {
        for block in blocks() {
            for index in 0..block.transactions.len() {
                let (proof, evidence) = Proof::of_block(1, &block, index);
                let evidence = evidence.expect("it is proven");
                let opened = proof.open(1, block.at.hash, index as u64).expect("it opens");
                assert_eq!(opened, Some(evidence), "{index} of {}", block.transactions.len());
            }
        }
    }

    #[test]
    fn a_changed_byte_another_index_and_another_block_are_refused() {
        let block = blocks().remove(2);
        let (proof, evidence) = Proof::of_block(1, &block, 5);
        assert!(evidence.is_some());
        let open = |proof: &Proof| proof.open(1, block.at.hash, 5);
        assert!(proof.open(1, block.at.hash, 4).is_err());
        assert!(proof.open(1, block.at.hash, 0).is_err());
        assert!(proof.open(1, block.at.parent_hash, 5).is_err());
        let text = serde_json::to_value(&proof).expect("JSON");
        assert_eq!(serde_json::from_value::<Proof>(text).expect("a proof"), proof);
        let Proof::Mpt { header, transaction, receipt, previous_receipt } = &proof else {
            panic!("it is proven");
        };
        let previous = previous_receipt.as_ref().expect("it has one before it");
        for (at, byte) in header.iter().enumerate() {
            let mut changed = header.to_vec();
            changed[at] = byte ^ 1;
            let header = Bytes::from(changed);
            let Proof::Mpt { transaction, receipt, previous_receipt, .. } = proof.clone() else {
                panic!("it is proven");
            };
            assert!(open(&Proof::Mpt { header, transaction, receipt, previous_receipt }).is_err());
        }
        for (which, nodes) in [transaction, receipt, previous].into_iter().enumerate() {
            for node in 0..nodes.len() {
                for at in (0..nodes[node].len()).step_by(7) {
                    let mut changed = nodes.clone();
                    let mut bytes = changed[node].to_vec();
                    bytes[at] ^= 1;
                    changed[node] = bytes.into();
                    let mut paths = [transaction.clone(), receipt.clone(), previous.clone()];
                    paths[which] = changed;
                    let [transaction, receipt, previous] = paths;
                    let proof = Proof::Mpt {
                        header: header.clone(),
                        transaction,
                        receipt,
                        previous_receipt: Some(previous),
                    };
                    assert!(open(&proof).is_err(), "path {which}, node {node}, byte {at}");
                }
            }
        }
        let mut missing = proof.clone();
        if let Proof::Mpt { previous_receipt, .. } = &mut missing {
            *previous_receipt = None;
        }
        assert!(open(&missing).is_err());
    }

    #[test]
    fn a_block_that_is_not_fully_verified_has_no_proof_and_says_why() {
        let mut block = blocks().remove(1);
        block.verified = VerifyLevel::Bloom;
        let (proof, evidence) = Proof::of_block(1, &block, 0);
        assert_eq!(evidence, None);
        assert!(matches!(proof, Proof::None { reason } if reason.contains("`bloom` only")));
    }
}
