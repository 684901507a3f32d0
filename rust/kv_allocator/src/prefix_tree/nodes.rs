//! The nodes of the prefix tree: runs of blocks in one array, linked to their parents, children and siblings.
//!
//! ```text
//!   parent ── first child ⇄ sibling ⇄ sibling        what stands at the top has no parent, and no siblings:
//!                 │                                  all that stands there is never asked for
//!                 └── first child ⇄ ...
//! ```
//!
//! Adding, linking and vacating are O(1); there is room for all nodes from the start.

use std::ops::{Index, IndexMut};

use super::super::block_pool::{NOWHERE, Place};
use super::super::ids::BlockId;

/// Names a node, as its blocks do in the pool.
pub type NodeId = Place;

/// No node: the parent of what stands at the top, the child of a leaf, the end of a list of siblings.
pub const NO_NODE: NodeId = NOWHERE;

/// A run of blocks that no other path branches off inside. Vacant when it has no blocks.
pub struct Node {
    pub blocks: Vec<BlockId>,
    pub salt: u64,
    /// Of (parent, salt, first block).
    pub hash: u64,
    pub parent: NodeId,
    pub first_child: NodeId,
    pub next_sibling: NodeId,
    pub previous_sibling: NodeId,
}

/// All nodes, and the ids that are vacant.
pub struct Nodes {
    nodes: Vec<Node>,
    vacant: Vec<NodeId>,
}

impl Nodes {
    /// No nodes, and room for `nodes`.
    pub fn with_capacity(nodes: usize) -> Self {
        Self { nodes: Vec::with_capacity(nodes), vacant: Vec::with_capacity(nodes) }
    }

    /// The id that [`add`](Self::add) will return.
    pub fn next_id(&self) -> NodeId {
        self.vacant.last().copied().unwrap_or(self.nodes.len() as NodeId)
    }

    /// Takes a node up. Those that it names as its neighbours do not name it yet.
    pub fn add(&mut self, node: Node) -> NodeId {
        match self.vacant.pop() {
            Some(id) => {
                self[id] = node;
                id
            }
            None => {
                // Never more nodes than blocks, so that the number fits.
                self.nodes.push(node);
                (self.nodes.len() - 1) as NodeId
            }
        }
    }

    /// Frees the id of a leaf without blocks.
    pub fn vacate(&mut self, id: NodeId) {
        self.unlink(id);
        self.vacant.push(id);
    }

    /// Makes a node the first child of its parent.
    pub fn link(&mut self, id: NodeId) {
        let parent = self[id].parent;
        if parent != NO_NODE {
            self[id].next_sibling = self[parent].first_child;
            self.announce(id);
        }
    }

    /// Makes the siblings and the parent that a node names, as the one behind, before and above it, name it.
    pub fn announce(&mut self, id: NodeId) {
        let Node { parent, next_sibling, previous_sibling, .. } = self[id];
        self.join(parent, previous_sibling, id);
        if next_sibling != NO_NODE {
            self[next_sibling].previous_sibling = id;
        }
    }

    fn unlink(&mut self, id: NodeId) {
        let Node { parent, next_sibling, previous_sibling, .. } = self[id];
        self.join(parent, previous_sibling, next_sibling);
        if next_sibling != NO_NODE {
            self[next_sibling].previous_sibling = previous_sibling;
        }
    }

    /// `next` comes behind `previous`, or first below `parent`.
    fn join(&mut self, parent: NodeId, previous: NodeId, next: NodeId) {
        if previous != NO_NODE {
            self[previous].next_sibling = next;
        } else if parent != NO_NODE {
            self[parent].first_child = next;
        }
    }

    /// The children of a node.
    pub fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        let some = |id: NodeId| (id != NO_NODE).then_some(id);
        std::iter::successors(some(self[id].first_child), move |&id| some(self[id].next_sibling))
    }

    /// All nodes, vacant ones too.
    pub fn all(&self) -> &[Node] {
        &self.nodes
    }

    /// How many of them are vacant.
    pub fn vacant(&self) -> usize {
        self.vacant.len()
    }
}

impl Index<NodeId> for Nodes {
    type Output = Node;

    fn index(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }
}

impl IndexMut<NodeId> for Nodes {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id as usize]
    }
}
