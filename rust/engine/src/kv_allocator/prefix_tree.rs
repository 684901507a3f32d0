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
//! The tokens stand in one array, by block, and everything that grows has its room from the start: an insert
//! meets neither a fresh page nor a table that must grow, and takes its time even when the cache fills up first.
//!
//! Matching is O(depth): one lookup a node, then a comparison a block. Inserting is O(depth) for a sequence whose
//! blocks are new; both go on from the last block known for one that grows: O(new blocks). Splitting is
//! O(blocks that become the head). Forgetting a block is O(1) at the end of a leaf, where the allocator evicts,
//! and O(what it takes with it) elsewhere.

mod invariants;

use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::block_pool::{BlockId, BlockPool, NOWHERE, Place};
use crate::error::{Error, Result};

type NodeId = Place;

/// No node: the parent of what stands at the top, the child of a leaf, the end of a list of siblings.
const NO_NODE: NodeId = NOWHERE;

/// A run of blocks that no other path branches off inside. Vacant when it has no blocks.
struct Node {
    blocks: Vec<BlockId>,
    salt: u64,
    /// Of (parent, salt, first block).
    hash: u64,
    parent: NodeId,
    first_child: NodeId,
    /// The other children of the parent; not kept at the top, where all of them are never asked for.
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

impl Descent {
    const TOP: Self = Self { node: NO_NODE, within: 0, depth: 0 };
}

/// The radix tree. Its blocks carry their node in the [`BlockPool`].
pub(super) struct PrefixTree {
    block_size: usize,
    /// [blocks, block_size]: what each block of the tree holds.
    tokens: Vec<u32>,
    nodes: Vec<Node>,
    vacant: Vec<NodeId>,
    /// Every node, by its hash.
    children: HashTable<NodeId>,
    /// Seeded at random, so that prompts cannot be made to collide.
    hasher: DefaultHashBuilder,
}

impl PrefixTree {
    pub(super) fn new(num_blocks: usize, block_size: usize) -> Result<Self> {
        let cells = num_blocks.checked_mul(block_size).filter(|&cells| cells <= isize::MAX as usize / 4);
        let Some(cells) = cells else {
            return Err(Error::InvalidArgument(format!("block_size {block_size} is too large")));
        };
        Ok(Self {
            block_size,
            // Written once (zeroes would not be), so that its pages are there before they are needed.
            tokens: vec![u32::MAX; cells],
            nodes: Vec::with_capacity(num_blocks),
            vacant: Vec::with_capacity(num_blocks),
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
        self.descend(Descent::TOP, salt, self.whole_blocks(tokens, limit), visit).depth
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
        let tokens = self.whole_blocks(tokens, limit);
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
        let tokens = self.whole_blocks(tokens, blocks.len());
        let start = self.last_known(salt, tokens, blocks, pool);
        let first = start.depth;
        let mut known = Vec::new();
        let Descent { node, within, depth } = self.descend(start, salt, tokens, |run| {
            known.extend_from_slice(if pool.has_windows() { run } else { &[] });
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
        } else if within < self.node(node).blocks.len() {
            let head = self.split(node, within, pool);
            self.add_child(head, salt, tokens, blocks, pool);
        } else if self.node(node).first_child != NO_NODE {
            self.add_child(node, salt, tokens, blocks, pool);
        } else {
            // A sequence that grows makes its leaf longer, not a chain of nodes.
            pool.enter_tree(blocks, node);
            self.store(tokens, blocks);
            self.node_mut(node).blocks.extend_from_slice(blocks);
        }
        blocks.len()
    }

    /// Puts a block in the place of another that holds the same tokens, in fewer groups.
    fn exchange(&mut self, theirs: BlockId, ours: BlockId, pool: &mut BlockPool) {
        let id = pool.place(theirs);
        pool.enter_tree(&[ours], id);
        let (from, to) = (self.cells(&[theirs]), self.cells(&[ours]).start);
        self.tokens.copy_within(from, to);
        let at = position(&self.node(id).blocks, theirs);
        self.node_mut(id).blocks[at] = ours;
        pool.leave_tree(theirs);
    }

    /// Forgets `block` and all that lies below it, deepest first.
    pub(super) fn forget(&mut self, block: BlockId, pool: &mut BlockPool) {
        let top = pool.place(block);
        let kept = position(&self.node(top).blocks, block);
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

    /// Whether paths part behind `block`, which may be unknown. O(1).
    pub(super) fn parts_behind(&self, block: BlockId, pool: &BlockPool) -> bool {
        let place = pool.place(block);
        place != NOWHERE && {
            let node = self.node(place);
            let child = node.first_child;
            node.blocks.last() == Some(&block) && child != NO_NODE && self.node(child).next_sibling != NO_NODE
        }
    }

    /// The first whole blocks of `tokens`, at most `limit`.
    fn whole_blocks<'a>(&self, tokens: &'a [u32], limit: usize) -> &'a [u32] {
        &tokens[..(tokens.len() / self.block_size).min(limit) * self.block_size]
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
                let run = &self.node(at.node).blocks[at.within..];
                let more = self.common_blocks(run, &tokens[at.depth * self.block_size..]);
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
        let node = self.node(id);
        let same = self.tokens[self.cells(&[block])] == tokens[last * self.block_size..][..self.block_size];
        assert!(
            same && node.salt == salt,
            "insert of KV block {block}, which is in the tree already for other tokens"
        );
        Descent { node: id, within: position(&node.blocks, block) + 1, depth: last + 1 }
    }

    fn child(&self, parent: NodeId, salt: u64, first: &[u32]) -> Option<NodeId> {
        let same = |&id: &NodeId| {
            let node = self.node(id);
            node.parent == parent && node.salt == salt && self.first_tokens(node) == first
        };
        self.children.find(self.hash(parent, salt, first), same).copied()
    }

    fn hash(&self, parent: NodeId, salt: u64, first: &[u32]) -> u64 {
        let hash = self.hasher.hash_one((parent, salt, first));
        // In tests nearly everything collides, so that nothing can be right by its hash alone.
        if cfg!(test) { hash & 1 } else { hash }
    }

    /// How many leading blocks of a run hold the leading `tokens`.
    fn common_blocks(&self, run: &[BlockId], tokens: &[u32]) -> usize {
        let limit = run.len().min(tokens.len() / self.block_size);
        let mut same = 0;
        for stretch in neighbours(&run[..limit]) {
            let stored = &self.tokens[self.cells(stretch)];
            let asked = &tokens[same * self.block_size..][..stored.len()];
            if stored != asked {
                let pairs = stored.chunks_exact(self.block_size).zip(asked.chunks_exact(self.block_size));
                return same + pairs.take_while(|(stored, asked)| stored == asked).count();
            }
            same += stretch.len();
        }
        same
    }

    /// Writes down what `blocks` hold.
    fn store(&mut self, mut tokens: &[u32], blocks: &[BlockId]) {
        for stretch in neighbours(blocks) {
            let cells = self.cells(stretch);
            let (here, rest) = tokens.split_at(cells.len());
            self.tokens[cells].copy_from_slice(here);
            tokens = rest;
        }
    }

    fn first_tokens(&self, node: &Node) -> &[u32] {
        &self.tokens[self.cells(&node.blocks[..1])]
    }

    /// Where the tokens of neighbouring blocks stand.
    fn cells(&self, stretch: &[BlockId]) -> Range<usize> {
        let start = stretch[0] as usize * self.block_size;
        start..start + stretch.len() * self.block_size
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
        self.store(tokens, blocks);
        let hash = self.hash(parent, salt, &tokens[..self.block_size]);
        let id = self.add_node(Node {
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
        let head_id = self.next_id();
        let tail = self.node_mut(id);
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
        let hash = self.hash(head_id, salt, self.first_tokens(self.node(id)));
        self.node_mut(id).hash = hash;
        self.table_insert(id);
        head_id
    }

    /// Drops the blocks of a leaf after the first `kept`, last first; a leaf that becomes empty vanishes.
    fn truncate(&mut self, id: NodeId, kept: usize, pool: &mut BlockPool) {
        let node = self.node_mut(id);
        for &block in node.blocks[kept..].iter().rev() {
            pool.leave_tree(block);
        }
        if kept > 0 {
            node.blocks.truncate(kept);
            return;
        }
        node.blocks = Vec::new();
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

    /// The id that [`Self::add_node`] will return.
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
}

/// Cuts a run where the ids jump. Blocks that were allocated together are neighbours, and so are their tokens.
fn neighbours(run: &[BlockId]) -> impl Iterator<Item = &[BlockId]> {
    run.chunk_by(|&block, &next| next == block + 1)
}

/// Where `block` stands in its run; most often at the end.
fn position(run: &[BlockId], block: BlockId) -> usize {
    run.iter().rposition(|&other| other == block).expect("a block stands in the node that it names")
}
