//! Which tokens the KV blocks hold: a radix tree over token blocks, so that equal prefixes share blocks.
//!
//! ```text
//!   block size 2; a node is a run of blocks, and the edge to it is the run's tokens
//!
//!   salt 0 ── "the cat" ─┬─ "sat on"          the cat sat on       → blocks 0 1 2 3
//!            [b0 b1]     │  [b2 b3]           the cat ran           → blocks 0 1 4
//!                        └─ "ran ."
//!                           [b4]              insert("the dog"): the first node is split after b0,
//!   salt 7 ── "the cat"                        and b5 becomes a sibling of what was cut off
//!            [b6 b7]
//! ```
//!
//! A child is found by the hash of (parent, salt, first block), in one table for the whole tree, and then
//! compared token by token: a hash decides nothing by itself. What stands at the top has no parent and differs
//! by its salt, so that a salt costs nothing but its nodes, and is gone with them.
//!
//! Matching and inserting are O(depth): one lookup a node, and comparing or copying the tokens of a run is
//! contiguous in memory. Splitting is O(the part that becomes the head). Forgetting a block is O(1) at the end
//! of a leaf, where the allocator evicts, and O(what it takes with it) elsewhere.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::BlockId;
use super::block_pool::{BlockPool, NOWHERE, Place};
use crate::error::{Error, Result};

type NodeId = Place;

/// No node: the parent of what stands at the top, the child of a leaf, the end of a list of siblings.
const NO_NODE: NodeId = NOWHERE;

/// A run of blocks that no other path branches off inside. Vacant when it has no blocks.
struct Node {
    /// `blocks.len() * block_size` tokens.
    tokens: Vec<u32>,
    blocks: Vec<BlockId>,
    salt: u64,
    /// Of (parent, salt, first block).
    hash: u64,
    parent: NodeId,
    first_child: NodeId,
    /// The other children of the parent; not kept at the top, where nobody asks for all of them.
    next_sibling: NodeId,
    previous_sibling: NodeId,
}

/// How far some tokens lead into the tree.
struct Descent {
    /// The last node reached, or [`NO_NODE`].
    node: NodeId,
    /// Blocks matched in `node`.
    within: usize,
    /// Blocks matched in all.
    depth: usize,
}

/// The radix tree. Its blocks carry their node in the [`BlockPool`].
pub(super) struct PrefixTree {
    block_size: usize,
    nodes: Vec<Node>,
    vacant: Vec<NodeId>,
    /// Every node, by its hash.
    children: HashTable<NodeId>,
    /// Seeded at random: nobody can send prompts made to collide.
    hasher: DefaultHashBuilder,
}

impl PrefixTree {
    pub(super) fn new(block_size: usize) -> Self {
        Self {
            block_size,
            nodes: Vec::new(),
            vacant: Vec::new(),
            children: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// Visits the runs of blocks that hold the longest known prefix of `tokens`, at most `limit` blocks;
    /// returns how many blocks that are.
    pub(super) fn find(
        &self,
        salt: u64,
        tokens: &[u32],
        limit: usize,
        visit: impl FnMut(&[BlockId]),
    ) -> usize {
        self.descend(salt, self.whole_blocks(tokens, limit), visit).depth
    }

    /// Takes up the full blocks of `tokens` that are not known yet; returns how many.
    ///
    /// Panics, with nothing changed, if a new block is held by nobody or stands in the tree elsewhere.
    pub(super) fn insert(
        &mut self,
        salt: u64,
        tokens: &[u32],
        blocks: &[BlockId],
        pool: &mut BlockPool,
    ) -> usize {
        let tokens = self.whole_blocks(tokens, blocks.len());
        let Descent { node, within, depth } = self.descend(salt, tokens, |_| {});
        let tokens = &tokens[depth * self.block_size..];
        let blocks = &blocks[depth..depth + tokens.len() / self.block_size];
        if blocks.is_empty() {
            return 0;
        }
        if node == NO_NODE {
            self.add_child(NO_NODE, salt, tokens, blocks, pool);
        } else if within < self.node(node).blocks.len() {
            let head = self.split(node, within, pool);
            self.add_child(head, salt, tokens, blocks, pool);
        } else if self.node(node).first_child != NO_NODE {
            self.add_child(node, salt, tokens, blocks, pool);
        } else {
            // A sequence that grows makes its leaf longer, not a chain of nodes.
            pool.enter_tree(blocks, node);
            let leaf = self.node_mut(node);
            leaf.tokens.extend_from_slice(tokens);
            leaf.blocks.extend_from_slice(blocks);
        }
        blocks.len()
    }

    /// Forgets `block` and all that lies below it, deepest first.
    pub(super) fn forget(&mut self, block: BlockId, pool: &mut BlockPool) {
        let top = pool.place(block);
        let kept = self.node(top).blocks.iter().rposition(|&other| other == block);
        let kept = kept.expect("a block stands in the node that it names");
        let mut node = top;
        loop {
            while self.node(node).first_child != NO_NODE {
                node = self.node(node).first_child;
            }
            if node == top {
                break self.truncate(top, kept, pool);
            }
            let parent = self.node(node).parent;
            self.truncate(node, 0, pool);
            node = parent;
        }
    }

    /// The first whole blocks of `tokens`, at most `limit`.
    fn whole_blocks<'a>(&self, tokens: &'a [u32], limit: usize) -> &'a [u32] {
        &tokens[..(tokens.len() / self.block_size).min(limit) * self.block_size]
    }

    fn descend(&self, salt: u64, mut tokens: &[u32], mut visit: impl FnMut(&[BlockId])) -> Descent {
        let mut descent = Descent { node: NO_NODE, within: 0, depth: 0 };
        while let Some(first) = tokens.get(..self.block_size) {
            let Some(child) = self.child(descent.node, salt, first) else { break };
            let node = self.node(child);
            let within = self.common_blocks(&node.tokens, tokens);
            visit(&node.blocks[..within]);
            tokens = &tokens[within * self.block_size..];
            descent = Descent { node: child, within, depth: descent.depth + within };
            if within < node.blocks.len() {
                break;
            }
        }
        descent
    }

    fn child(&self, parent: NodeId, salt: u64, first: &[u32]) -> Option<NodeId> {
        let same = |&id: &NodeId| {
            let node = self.node(id);
            node.parent == parent && node.salt == salt && node.tokens[..first.len()] == *first
        };
        self.children.find(self.hash(parent, salt, first), same).copied()
    }

    fn hash(&self, parent: NodeId, salt: u64, first: &[u32]) -> u64 {
        self.hasher.hash_one((parent, salt, first))
    }

    /// How many leading blocks two runs have in common.
    fn common_blocks(&self, run: &[u32], tokens: &[u32]) -> usize {
        let length = run.len().min(tokens.len());
        let (run, tokens) = (&run[..length], &tokens[..length]);
        if run == tokens {
            return length / self.block_size;
        }
        let blocks = run.chunks_exact(self.block_size).zip(tokens.chunks_exact(self.block_size));
        blocks.take_while(|(a, b)| a == b).count()
    }

    /// Makes a leaf below `parent`; its first block must differ from those of its siblings.
    fn add_child(
        &mut self,
        parent: NodeId,
        salt: u64,
        tokens: &[u32],
        blocks: &[BlockId],
        pool: &mut BlockPool,
    ) {
        pool.enter_tree(blocks, self.next_id());
        let hash = self.hash(parent, salt, &tokens[..self.block_size]);
        let id = self.add_node(Node {
            tokens: tokens.to_vec(),
            blocks: blocks.to_vec(),
            salt,
            hash,
            parent,
            first_child: NO_NODE,
            next_sibling: NO_NODE,
            previous_sibling: NO_NODE,
        });
        self.link_sibling(id);
        self.table_insert(id);
    }

    /// Cuts `id` after its first `at` blocks; returns the new node, its head and parent.
    ///
    /// ```text
    ///   parent ── id [b0 b1 b2 b3] ── children     at = 1
    ///   parent ── head [b0] ── id [b1 b2 b3] ── children
    /// ```
    ///
    /// The tail keeps the name, so that its children need not learn another.
    fn split(&mut self, id: NodeId, at: usize, pool: &mut BlockPool) -> NodeId {
        let (cut, head_id) = (at * self.block_size, self.next_id());
        let tail = self.node_mut(id);
        let rest = tail.tokens.split_off(cut);
        let head_tokens = std::mem::replace(&mut tail.tokens, rest);
        let rest = tail.blocks.split_off(at);
        let head_blocks = std::mem::replace(&mut tail.blocks, rest);
        let (salt, hash, parent) = (tail.salt, tail.hash, tail.parent);
        let (next_sibling, previous_sibling) = (tail.next_sibling, tail.previous_sibling);
        (tail.next_sibling, tail.previous_sibling) = (NO_NODE, NO_NODE);
        tail.parent = head_id;
        for &block in &head_blocks {
            pool.set_place(block, head_id);
        }
        // The head takes the tail's place in the table and among the siblings.
        *self.children.find_mut(hash, |&other| other == id).expect("every node is in the table") = head_id;
        self.add_node(Node {
            tokens: head_tokens,
            blocks: head_blocks,
            salt,
            hash,
            parent,
            first_child: id,
            next_sibling,
            previous_sibling,
        });
        if next_sibling != NO_NODE {
            self.node_mut(next_sibling).previous_sibling = head_id;
        }
        if previous_sibling != NO_NODE {
            self.node_mut(previous_sibling).next_sibling = head_id;
        } else if parent != NO_NODE {
            self.node_mut(parent).first_child = head_id;
        }
        let hash = self.hash(head_id, salt, &self.node(id).tokens[..self.block_size]);
        self.node_mut(id).hash = hash;
        self.table_insert(id);
        head_id
    }

    /// Drops the blocks of a leaf after the first `kept`, last first; a leaf that becomes empty vanishes.
    fn truncate(&mut self, id: NodeId, kept: usize, pool: &mut BlockPool) {
        let kept_tokens = kept * self.block_size;
        let node = self.node_mut(id);
        for &block in node.blocks[kept..].iter().rev() {
            pool.leave_tree(block);
        }
        if kept > 0 {
            node.blocks.truncate(kept);
            node.tokens.truncate(kept_tokens);
            return;
        }
        (node.tokens, node.blocks) = (Vec::new(), Vec::new());
        let hash = node.hash;
        self.unlink_sibling(id);
        match self.children.find_entry(hash, |&other| other == id) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("every node is in the table"),
        }
        self.vacant.push(id);
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// What [`Self::add_node`] will return.
    fn next_id(&self) -> NodeId {
        self.vacant.last().copied().unwrap_or(self.nodes.len() as NodeId)
    }

    fn add_node(&mut self, node: Node) -> NodeId {
        match self.vacant.pop() {
            Some(id) => {
                *self.node_mut(id) = node;
                id
            }
            None => {
                // Never more nodes than blocks, so that the number fits.
                self.nodes.push(node);
                (self.nodes.len() - 1) as NodeId
            }
        }
    }

    fn table_insert(&mut self, id: NodeId) {
        let nodes = &self.nodes;
        self.children.insert_unique(nodes[id as usize].hash, id, |&other| nodes[other as usize].hash);
    }

    fn link_sibling(&mut self, id: NodeId) {
        let parent = self.node(id).parent;
        if parent == NO_NODE {
            return;
        }
        let next = std::mem::replace(&mut self.node_mut(parent).first_child, id);
        self.node_mut(id).next_sibling = next;
        if next != NO_NODE {
            self.node_mut(next).previous_sibling = id;
        }
    }

    fn unlink_sibling(&mut self, id: NodeId) {
        let Node { parent, next_sibling, previous_sibling, .. } = *self.node(id);
        if next_sibling != NO_NODE {
            self.node_mut(next_sibling).previous_sibling = previous_sibling;
        }
        if previous_sibling != NO_NODE {
            self.node_mut(previous_sibling).next_sibling = next_sibling;
        } else if parent != NO_NODE {
            self.node_mut(parent).first_child = next_sibling;
        }
    }

    /// Nodes, table, siblings and the places of the blocks agree.
    pub(super) fn check(&self, pool: &BlockPool) -> Result<()> {
        let (mut nodes, mut blocks, mut linked) = (0, 0, 0);
        for (id, node) in (0..).zip(&self.nodes).filter(|(_, node)| !node.blocks.is_empty()) {
            self.check_node(id, node, pool).map_err(|what| Error::Invariant(format!("node {id}: {what}")))?;
            nodes += 1;
            blocks += node.blocks.len();
            linked += self.children_of(id).count() + usize::from(node.parent == NO_NODE);
        }
        let placed = (0..pool.num_blocks() as BlockId).filter(|&block| pool.place(block) != NOWHERE).count();
        let broken = |what: String| Err(Error::Invariant(what));
        if blocks != placed {
            return broken(format!("{blocks} blocks stand in nodes, {placed} say that they do"));
        }
        if nodes != self.children.len() || nodes != linked || nodes + self.vacant.len() != self.nodes.len() {
            let (table, vacant, all) = (self.children.len(), self.vacant.len(), self.nodes.len());
            return broken(format!(
                "{nodes} of {all} nodes have blocks; {table} in the table, {linked} linked, {vacant} vacant"
            ));
        }
        Ok(())
    }

    fn children_of(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        let some = |id: NodeId| (id != NO_NODE).then_some(id);
        std::iter::successors(some(self.node(id).first_child), move |&id| some(self.node(id).next_sibling))
    }

    fn check_node(&self, id: NodeId, node: &Node, pool: &BlockPool) -> std::result::Result<(), &'static str> {
        if node.tokens.len() != node.blocks.len() * self.block_size {
            return Err("tokens and blocks differ in length");
        }
        let first = &node.tokens[..self.block_size];
        if node.hash != self.hash(node.parent, node.salt, first) {
            return Err("wrong hash");
        }
        if self.child(node.parent, node.salt, first) != Some(id) {
            return Err("not found, or another has the same first block");
        }
        if node.blocks.iter().any(|&block| pool.place(block) != id) {
            return Err("a block that names another node");
        }
        let mut previous = NO_NODE;
        for child in self.children_of(id) {
            let other = self.node(child);
            if other.parent != id || other.salt != node.salt || other.previous_sibling != previous {
                return Err("a child that is wrongly linked");
            }
            previous = child;
        }
        Ok(())
    }
}
