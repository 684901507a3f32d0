//! A trie of tokens by their bytes, laid out in the order of a walk.
//!
//! ```text
//!  nodes    a   ab   abc   b   ...        each node knows how many nodes its subtree has:
//!           4   2    1     ...            a walk that is refused at `ab` goes on behind `abc`
//! ```
//!
//! O(bytes of all tokens) to build.

use rustc_hash::FxHashMap;

/// Fewer children are searched one by one.
const FEW: usize = 8;
/// The children of no node: the first bytes of all tokens.
const TOP: u32 = u32::MAX;
/// A reader of fewer nodes is not asked which byte it takes.
const NOT_ASKED: u32 = 2;
/// No token ends at a node.
const NO_TOKEN: u32 = u32::MAX;

/// A byte, what is before it, and the tokens below.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    token: u32,
    /// How many nodes its subtree has, itself among them.
    size: u32,
    depth: u16,
    byte: u8,
}

/// Nodes in the order of a walk.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    nodes: Box<[Node]>,
    /// The children of nodes that have many, by byte.
    children: FxHashMap<u32, Box<[(u8, u32)]>>,
}

/// What reads the bytes of a walk.
pub(crate) trait Reader {
    /// Takes the byte at `node`, as the `depth`-th; false if no token may have it there. Bytes at this depth and below
    /// that were taken before are forgotten.
    fn take(&mut self, depth: usize, byte: u8, node: u32) -> bool;

    /// A token ends with the byte that was taken last.
    fn token(&mut self, token: u32);

    /// The only byte that it may take as the `depth`-th, if it knows of one.
    fn only(&mut self, _depth: usize) -> Option<u8> {
        None
    }
}

/// Takes every token.
impl Reader for Vec<u32> {
    fn take(&mut self, _depth: usize, _byte: u8, _node: u32) -> bool {
        true
    }

    fn token(&mut self, token: u32) {
        self.push(token);
    }
}

impl Trie {
    /// A trie of tokens with their bytes, of which none is empty.
    pub(crate) fn new<'a>(tokens: impl Iterator<Item = (u32, &'a [u8])>) -> Self {
        let mut sorted: Vec<(&[u8], u32)> = tokens.map(|(token, bytes)| (bytes, token)).collect();
        sorted.sort_unstable();
        let (mut nodes, mut open): (Vec<Node>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut before: &[u8] = &[];
        for (bytes, token) in sorted {
            let shared = bytes.iter().zip(before).take_while(|(a, b)| a == b).count();
            // A token of the same bytes as another has a last node of its own.
            let shared = shared.min(bytes.len() - 1);
            close(&mut nodes, &mut open, shared);
            for (depth, byte) in bytes.iter().enumerate().skip(shared) {
                open.push(nodes.len());
                nodes.push(Node { token: NO_TOKEN, size: 1, depth: depth as u16, byte: *byte });
            }
            nodes[*open.last().expect("a token has bytes")].token = token;
            before = bytes;
        }
        close(&mut nodes, &mut open, 0);
        let mut trie = Self { nodes: nodes.into(), children: FxHashMap::default() };
        let parents =
            (0..trie.nodes.len() as u32).filter(|node| trie.nodes[*node as usize].size as usize > FEW);
        let many = std::iter::once(TOP).chain(parents).filter_map(|node| {
            let (from, to) = trie.below(node);
            let children: Box<[_]> = trie.siblings(from, to).map(|(node, byte)| (byte, node)).collect();
            (children.len() > FEW).then_some((node, children))
        });
        let many = many.collect();
        trie.children = many;
        trie
    }

    /// Walks all tokens.
    pub(crate) fn walk(&self, reader: &mut impl Reader) {
        self.walk_children(TOP, 0, reader);
    }

    /// Walks what comes after `node`, whose children have the depth 0.
    pub(crate) fn walk_below(&self, node: u32, reader: &mut impl Reader) {
        self.walk_children(node, usize::from(self.nodes[node as usize].depth) + 1, reader);
    }

    /// Walks the children of a node, and what comes after them; a reader's depth is `base` less than a node's.
    fn walk_children(&self, parent: u32, base: usize, reader: &mut impl Reader) {
        let (mut at, to) = self.below(parent);
        let Some(first) = self.nodes[..to as usize].get(at as usize) else { return };
        let depth = usize::from(first.depth) - base;
        if to - at >= NOT_ASKED
            && let Some(byte) = reader.only(depth)
        {
            return self
                .children_of(parent, byte)
                .for_each(|child| self.visit(child, byte, depth, base, reader));
        }
        if let Some(children) = self.children.get(&parent) {
            return children.iter().for_each(|(byte, child)| self.visit(*child, *byte, depth, base, reader));
        }
        while at < to {
            let Node { byte, size, .. } = self.nodes[at as usize];
            self.visit(at, byte, depth, base, reader);
            at += size;
        }
    }

    #[inline]
    fn visit(&self, at: u32, byte: u8, depth: usize, base: usize, reader: &mut impl Reader) {
        if reader.take(depth, byte, at) {
            let Node { token, size, .. } = self.nodes[at as usize];
            if token != NO_TOKEN {
                reader.token(token);
            }
            if size > 1 {
                self.walk_children(at, base, reader);
            }
        }
    }

    /// The token that ends at `node`.
    pub(crate) fn token(&self, node: u32) -> Option<u32> {
        Some(self.nodes[node as usize].token).filter(|token| *token != NO_TOKEN)
    }

    /// The node at which these bytes end, that has all tokens that go on behind them; None if none begins so.
    pub(crate) fn node(&self, bytes: &[u8]) -> Option<u32> {
        let mut node = TOP;
        for byte in bytes {
            node = self.children_of(node, *byte).last()?;
        }
        Some(node).filter(|node| *node != TOP)
    }

    /// The children of a node, as a range that has those below them, too.
    fn below(&self, node: u32) -> (u32, u32) {
        match node {
            TOP => (0, self.nodes.len() as u32),
            node => (node + 1, node + self.nodes[node as usize].size),
        }
    }

    /// The children of a node that have this byte.
    fn children_of(&self, node: u32, byte: u8) -> impl Iterator<Item = u32> + '_ {
        let listed = self.children.get(&node).map(|children| {
            let from = children.partition_point(|(other, _)| *other < byte);
            &children[from..]
        });
        let (from, to) = if listed.is_some() { (0, 0) } else { self.below(node) };
        let listed = listed.unwrap_or_default().iter().map(|(byte, node)| (*node, *byte));
        let found = listed.chain(self.siblings(from, to)).skip_while(move |(_, other)| *other < byte);
        found.take_while(move |(_, other)| *other == byte).map(|(node, _)| node)
    }

    fn siblings(&self, mut at: u32, end: u32) -> impl Iterator<Item = (u32, u8)> + '_ {
        std::iter::from_fn(move || {
            let node = at;
            let next = self.nodes.get(node as usize).filter(|_| node < end)?;
            at += next.size;
            Some((node, next.byte))
        })
    }
}

/// Ends the nodes at `depth` and below.
fn close(nodes: &mut [Node], open: &mut Vec<usize>, depth: usize) {
    let end = nodes.len();
    for at in open.drain(depth..) {
        nodes[at].size = (end - at) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes what its texts have, and notes the tokens.
    struct Prefixes<'a>(&'a [&'a str], Vec<u8>, Vec<u32>);

    impl Reader for Prefixes<'_> {
        fn take(&mut self, depth: usize, byte: u8, _node: u32) -> bool {
            self.1.truncate(depth);
            self.1.push(byte);
            self.0.iter().any(|text| text.as_bytes().starts_with(&self.1))
        }

        fn token(&mut self, token: u32) {
            self.2.push(token);
        }
    }

    #[test]
    fn a_walk_finds_the_tokens_that_are_taken() {
        let words = ["abc", "b", "a", "abd", "ab", "bcd", "a"];
        let trie = Trie::new((0..).zip(words.iter().map(|word| word.as_bytes())));
        let found = |texts: &[&str]| {
            let mut reader = Prefixes(texts, Vec::new(), Vec::new());
            trie.walk(&mut reader);
            reader.2
        };
        assert_eq!(found(&["abc"]), [2, 6, 4, 0]);
        assert_eq!(found(&["bcde", "abd"]), [2, 6, 4, 3, 1, 5]);
        assert_eq!(found(&[""]), [0u32; 0]);
        assert_eq!(
            ["ab", "b", "x", "abcd"].map(|text| trie.node(text.as_bytes())),
            [Some(2), Some(5), None, None]
        );
        assert_eq!((trie.token(1), trie.token(2)), (Some(6), Some(4)));
        let mut below = Prefixes(&["bd"], Vec::new(), Vec::new());
        trie.walk_below(1, &mut below);
        assert_eq!(below.2, [4, 3]);
    }
}
