//! The invariants of the prefix tree, checked node by node: O(blocks).

use super::super::block_pool::{BlockId, BlockPool, NOWHERE};
use super::{NO_NODE, Node, NodeId, PrefixTree};
use crate::error::{Error, Result};

impl PrefixTree {
    /// Nodes, table, siblings and the places of the blocks agree.
    pub(in super::super) fn check(&self, pool: &BlockPool) -> Result<()> {
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
        let first = self.first_tokens(node);
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
