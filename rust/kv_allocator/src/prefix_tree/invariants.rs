//! The invariants of the prefix tree, checked node by node: O(blocks).

use super::super::block_pool::{BlockPool, NOWHERE};
use super::super::ids::BlockId;
use super::PrefixTree;
use super::nodes::{NO_NODE, Node, NodeId};
use pyengine_base::error::{Error, Result};

impl PrefixTree {
    /// Nodes, table, siblings and the places of the blocks agree.
    pub(in super::super) fn check(&self, pool: &BlockPool) -> Result<()> {
        let (mut nodes, mut blocks, mut linked) = (0, 0, 0);
        for (id, node) in (0..).zip(self.nodes.all()).filter(|(_, node)| !node.blocks.is_empty()) {
            self.check_node(id, node, pool).map_err(|what| Error::Invariant(format!("node {id}: {what}")))?;
            nodes += 1;
            blocks += node.blocks.len();
            linked += self.nodes.children(id).count() + usize::from(node.parent == NO_NODE);
        }
        let placed = (0..pool.num_blocks() as BlockId).filter(|&block| pool.place(block) != NOWHERE).count();
        let broken = |what: String| Err(Error::Invariant(what));
        if blocks != placed {
            return broken(format!("{blocks} blocks stand in nodes, {placed} say that they do"));
        }
        let (table, vacant, all) = (self.children.len(), self.nodes.vacant(), self.nodes.all().len());
        if nodes != table || nodes != linked || nodes + vacant != all {
            return broken(format!(
                "{nodes} of {all} nodes have blocks; {table} in the table, {linked} linked, {vacant} vacant"
            ));
        }
        Ok(())
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
        for child in self.nodes.children(id) {
            let other = &self.nodes[child];
            if other.parent != id || other.salt != node.salt || other.previous_sibling != previous {
                return Err("a child that is wrongly linked");
            }
            previous = child;
        }
        Ok(())
    }
}
