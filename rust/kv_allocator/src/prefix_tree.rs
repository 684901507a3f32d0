//! The tokens that KV blocks hold: a radix tree over token blocks, so that equal prefixes share blocks.
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
//! Everything that grows has its room from the start: an insert
//! meets neither a fresh page nor a table that must grow, and takes its time even when the cache fills up first.
//!
//! Matching is O(depth): one lookup a node, then a comparison a block. Inserting is O(depth) for a sequence whose
//! blocks are new; both go on from the last block known for one that grows: O(new blocks). Splitting is
//! O(blocks that become the head). Forgetting a block is O(1) at the end of a leaf, where the allocator evicts,
//! and O(what it takes with it) elsewhere.

mod block_tokens;
mod invariants;
mod nodes;

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::block_pool::{BlockPool, NOWHERE};
use super::ids::BlockId;
use block_tokens::BlockTokens;
use nodes::{NO_NODE, Node, NodeId, Nodes};
use pyengine_base::error::Result;

/// How far some tokens lead into the tree.
struct Descent {
    /// The last node reached, or [`NO_NODE`].
    node: NodeId,
    /// Blocks matched in `node`.
    within: usize,
    /// Blocks matched in all.
    depth: usize,
}

impl Descent {
    const TOP: Self = Self { node: NO_NODE, within: 0, depth: 0 };
}

/// The radix tree. Its blocks carry their node in the [`BlockPool`].
pub(super) struct PrefixTree {
    block_size: usize,
    tokens: BlockTokens,
    nodes: Nodes,
    /// Every node, by its hash.
    children: HashTable<NodeId>,
    /// Seeded at random, so that prompts cannot be made to collide.
    hasher: DefaultHashBuilder,
}

impl PrefixTree {
    pub(super) fn new(num_blocks: usize, block_size: usize) -> Result<Self> {
        Ok(Self {
            block_size,
            tokens: BlockTokens::new(num_blocks, block_size)?,
            nodes: Nodes::with_capacity(num_blocks),
            children: HashTable::with_capacity(num_blocks),
            hasher: DefaultHashBuilder::default(),
        })
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
        self.descend(Descent::TOP, salt, self.tokens.whole_blocks(tokens, limit), visit).depth
    }

    /// Visits the runs that follow `held`, the blocks of the first of `tokens`, from the last of them that is known
    /// on; `limit` counts `held` in.
    pub(super) fn find_further(
        &self,
        salt: u64,
        tokens: &[u32],
        held: &[BlockId],
        limit: usize,
        pool: &BlockPool,
        mut visit: impl FnMut(&[BlockId]),
    ) {
        let tokens = self.tokens.whole_blocks(tokens, limit);
        if held.len() * self.block_size >= tokens.len() {
            return;
        }
        let start = self.last_known(salt, tokens, held, pool);
        let mut passed = held.len() - start.depth;
        self.descend(start, salt, tokens, |run| {
            let here = passed.min(run.len());
            passed -= here;
            visit(&run[here..]);
        });
    }

    /// Takes up the full blocks of `tokens` that are not known yet; returns how many. Where one is known that has lost
    /// its pages in a window, and the caller's has them, the caller's takes its place.
    ///
    /// Panics, with nothing changed, if a new block is not held or stands in the tree elsewhere.
    pub(super) fn insert(
        &mut self,
        salt: u64,
        tokens: &[u32],
        blocks: &[BlockId],
        pool: &mut BlockPool,
    ) -> usize {
        let tokens = self.tokens.whole_blocks(tokens, blocks.len());
        let start = self.last_known(salt, tokens, blocks, pool);
        let first = start.depth;
        let mut known = Vec::new();
        let Descent { node, within, depth } = self.descend(start, salt, tokens, |run| {
            known.extend_from_slice(if pool.has_more_groups() { run } else { &[] });
        });
        for (&theirs, &ours) in known.iter().zip(&blocks[first..]) {
            if pool.has_more(ours, theirs) {
                self.exchange(theirs, ours, pool);
            }
        }
        let tokens = &tokens[depth * self.block_size..];
        let blocks = &blocks[depth..depth + tokens.len() / self.block_size];
        if blocks.is_empty() {
            return 0;
        }
        if node == NO_NODE {
            self.add_child(NO_NODE, salt, tokens, blocks, pool);
        } else if within < self.nodes[node].blocks.len() {
            let head = self.split(node, within, pool);
            self.add_child(head, salt, tokens, blocks, pool);
        } else if self.nodes[node].first_child != NO_NODE {
            self.add_child(node, salt, tokens, blocks, pool);
        } else {
            // A sequence that grows makes its leaf longer, not a chain of nodes.
            pool.enter_tree(blocks, node);
            self.tokens.store(tokens, blocks);
            self.nodes[node].blocks.extend_from_slice(blocks);
        }
        blocks.len()
    }

    /// Puts a block in the place of another that holds the same tokens, in fewer groups.
    fn exchange(&mut self, theirs: BlockId, ours: BlockId, pool: &mut BlockPool) {
        let id = pool.place(theirs);
        pool.enter_tree(&[ours], id);
        self.tokens.copy(theirs, ours);
        let at = position(&self.nodes[id].blocks, theirs);
        self.nodes[id].blocks[at] = ours;
        pool.move_snapshot(theirs, ours);
        pool.leave_tree(theirs);
    }

    /// Forgets `block` and all that lies below it, deepest first.
    pub(super) fn forget(&mut self, block: BlockId, pool: &mut BlockPool) {
        let top = pool.place(block);
        let kept = position(&self.nodes[top].blocks, block);
        let mut node = top;
        loop {
            while self.nodes[node].first_child != NO_NODE {
                node = self.nodes[node].first_child;
            }
            if node == top {
                break self.truncate(top, kept, pool);
            }
            let parent = self.nodes[node].parent;
            self.truncate(node, 0, pool);
            node = parent;
        }
    }

    /// Whether paths part behind `block`, which may be unknown. O(1).
    pub(super) fn parts_behind(&self, block: BlockId, pool: &BlockPool) -> bool {
        let place = pool.place(block);
        place != NOWHERE && {
            let node = &self.nodes[place];
            let child = node.first_child;
            node.blocks.last() == Some(&block)
                && child != NO_NODE
                && self.nodes[child].next_sibling != NO_NODE
        }
    }

    /// Follows `tokens` from `at` on, as far as the tree knows them.
    fn descend(
        &self,
        mut at: Descent,
        salt: u64,
        tokens: &[u32],
        mut visit: impl FnMut(&[BlockId]),
    ) -> Descent {
        loop {
            if at.node != NO_NODE {
                let run = &self.nodes[at.node].blocks[at.within..];
                let more = self.tokens.common_blocks(run, &tokens[at.depth * self.block_size..]);
                visit(&run[..more]);
                at.within += more;
                at.depth += more;
                if more < run.len() {
                    return at;
                }
            }
            let Some(first) = tokens[at.depth * self.block_size..].get(..self.block_size) else { return at };
            let Some(child) = self.child(at.node, salt, first) else { return at };
            at = Descent { node: child, within: 0, depth: at.depth };
        }
    }

    /// Where the last of `blocks` that the tree knows stands: a sequence that grows goes on there, and need not
    /// come down from the top again. Panics if that block is known for other tokens.
    fn last_known(&self, salt: u64, tokens: &[u32], blocks: &[BlockId], pool: &BlockPool) -> Descent {
        let Some(last) = blocks.iter().rposition(|&block| pool.place(block) != NOWHERE) else {
            return Descent::TOP;
        };
        let (block, id) = (blocks[last], pool.place(blocks[last]));
        let node = &self.nodes[id];
        let same = *self.tokens.of(block) == tokens[last * self.block_size..][..self.block_size];
        assert!(
            same && node.salt == salt,
            "insert of KV block {block}, which is in the tree already for other tokens"
        );
        Descent { node: id, within: position(&node.blocks, block) + 1, depth: last + 1 }
    }

    fn child(&self, parent: NodeId, salt: u64, first: &[u32]) -> Option<NodeId> {
        let same = |&id: &NodeId| {
            let node = &self.nodes[id];
            node.parent == parent && node.salt == salt && self.first_tokens(node) == first
        };
        self.children.find(self.hash(parent, salt, first), same).copied()
    }

    fn hash(&self, parent: NodeId, salt: u64, first: &[u32]) -> u64 {
        let hash = self.hasher.hash_one((parent, salt, first));
        // In tests nearly everything collides, so that nothing can be right by its hash alone.
        if cfg!(test) { hash & 1 } else { hash }
    }

    fn first_tokens(&self, node: &Node) -> &[u32] {
        self.tokens.of(node.blocks[0])
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
        pool.enter_tree(blocks, self.nodes.next_id());
        self.tokens.store(tokens, blocks);
        let hash = self.hash(parent, salt, &tokens[..self.block_size]);
        let id = self.nodes.add(Node {
            blocks: blocks.to_vec(),
            salt,
            hash,
            parent,
            first_child: NO_NODE,
            next_sibling: NO_NODE,
            previous_sibling: NO_NODE,
        });
        self.nodes.link(id);
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
        let head_id = self.nodes.next_id();
        let tail = &mut self.nodes[id];
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
        self.nodes.add(Node {
            blocks: head_blocks,
            salt,
            hash,
            parent,
            first_child: id,
            next_sibling,
            previous_sibling,
        });
        self.nodes.announce(head_id);
        let hash = self.hash(head_id, salt, self.first_tokens(&self.nodes[id]));
        self.nodes[id].hash = hash;
        self.table_insert(id);
        head_id
    }

    /// Drops the blocks of a leaf after the first `kept`, last first; a leaf that becomes empty vanishes.
    fn truncate(&mut self, id: NodeId, kept: usize, pool: &mut BlockPool) {
        let node = &mut self.nodes[id];
        for &block in node.blocks[kept..].iter().rev() {
            pool.leave_tree(block);
        }
        if kept > 0 {
            node.blocks.truncate(kept);
            return;
        }
        node.blocks = Vec::new();
        let hash = node.hash;
        match self.children.find_entry(hash, |&other| other == id) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("every node is in the table"),
        }
        self.nodes.vacate(id);
    }

    fn table_insert(&mut self, id: NodeId) {
        let nodes = &self.nodes;
        self.children.insert_unique(nodes[id].hash, id, |&other| nodes[other].hash);
    }
}

/// Where `block` stands in its run; most often at the end.
fn position(run: &[BlockId], block: BlockId) -> usize {
    run.iter().rposition(|&other| other == block).expect("a block stands in the node that it names")
}
