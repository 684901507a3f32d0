//! A trie of tokens by their bytes, laid out in the order of a walk.
//!
//! ```text
//!  nodes    a   ab   abc   b   ...        each node knows how many nodes its subtree has:
//!           4   2    1     ...            a walk that is refused at `ab` goes on behind `abc`
//! ```
//!
//! O(bytes of all tokens) to build. A reader that takes letters as often as they come gets the tokens below a node that has
//! only such, and does not see their bytes: half of all nodes are within words.

use rustc_hash::FxHashMap;

/// Fewer children are searched one by one.
const FEW: usize = 8;
/// The children of no node: the first bytes of all tokens.
const TOP: u32 = u32::MAX;
/// Below a node with fewer, each node is shown to the reader: to ask which byte it takes costs as much as some of them.
const LARGE: u32 = 32;
/// The kinds of what has no bytes.
const ALL_KINDS: Kinds = 3;
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
    /// The kinds that all bytes below it are of.
    below: Kinds,
}

/// Kinds of bytes, as bits: most tokens are words.
pub(crate) type Kinds = u8;
/// Whether a byte is of a kind.
pub(crate) type IsOf = fn(&u8) -> bool;
/// Each kind with its bit.
pub(crate) const KINDS: [(Kinds, IsOf); 2] = [(1, u8::is_ascii_lowercase), (2, u8::is_ascii_alphabetic)];

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

    /// The kinds of bytes that it takes as the `depth`-th and behind, as often as they come.
    fn takes_all(&mut self, _depth: usize) -> Kinds {
        0
    }

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
                nodes.push(Node {
                    token: NO_TOKEN,
                    size: 1,
                    depth: depth as u16,
                    byte: *byte,
                    below: ALL_KINDS,
                });
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
        let (at, to) = self.below(parent);
        let Some(first) = self.nodes[..to as usize].get(at as usize) else { return };
        if to - at < LARGE {
            return self.walk_nodes(at, to, base, reader);
        }
        if let Some(byte) = reader.only(usize::from(first.depth) - base) {
            return self.children_of(parent, byte).for_each(|child| self.walk_node(child, base, reader));
        }
        match self.children.get(&parent) {
            Some(children) => children.iter().for_each(|(_, child)| self.walk_node(*child, base, reader)),
            None => self.walk_nodes(at, to, base, reader),
        }
    }

    fn walk_node(&self, node: u32, base: usize, reader: &mut impl Reader) {
        self.walk_nodes(node, node + self.nodes[node as usize].size, base, reader);
    }

    /// Walks whole subtrees, one behind the other.
    #[inline]
    fn walk_nodes(&self, mut at: u32, to: u32, base: usize, reader: &mut impl Reader) {
        while at < to {
            let Node { token, size, depth, byte, below } = self.nodes[at as usize];
            let depth = usize::from(depth) - base;
            if !reader.take(depth, byte, at) {
                at += size;
                continue;
            }
            if token != NO_TOKEN {
                reader.token(token);
            }
            if size > FEW as u32 && below != 0 && below & reader.takes_all(depth + 1) != 0 {
                let below = &self.nodes[at as usize + 1..(at + size) as usize];
                below.iter().filter(|node| node.token != NO_TOKEN).for_each(|node| reader.token(node.token));
                at += size;
            } else if size > LARGE {
                self.walk_children(at, base, reader);
                at += size;
            } else {
                at += 1;
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
    let mut below = ALL_KINDS;
    for at in open.drain(depth..).rev() {
        let node = &mut nodes[at];
        node.size = (end - at) as u32;
        node.below &= below;
        below = node.below & kinds(node.byte);
    }
    if let Some(parent) = open.last() {
        nodes[*parent].below &= below;
    }
}

fn kinds(byte: u8) -> Kinds {
    KINDS.iter().filter(|(_, is_of)| is_of(&byte)).map(|(kind, _)| kind).sum()
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

    /// Takes lower case as often as it comes, and nothing else behind the first byte; counts the bytes that it sees.
    struct Lower(usize, Vec<u32>);

    impl Reader for Lower {
        fn take(&mut self, depth: usize, byte: u8, _node: u32) -> bool {
            self.0 += 1;
            depth == 0 || byte.is_ascii_lowercase()
        }

        fn token(&mut self, token: u32) {
            self.1.push(token);
        }

        fn takes_all(&mut self, _depth: usize) -> Kinds {
            KINDS[0].0
        }
    }

    #[test]
    fn tokens_of_one_kind_come_without_their_bytes() {
        let below = |letters: [char; 3]| {
            let words = letters.map(|a| letters.map(|b| format!("x{a}{b}")));
            words.into_iter().flatten().collect::<Vec<String>>()
        };
        let read = |words: &[String]| {
            let mut reader = Lower(0, Vec::new());
            Trie::new((0..).zip(words.iter().map(|word| word.as_bytes()))).walk(&mut reader);
            (reader.0, reader.1)
        };
        assert_eq!(read(&below(['a', 'b', 'c'])), (1, (0..9).collect()));
        assert_eq!(read(&below(['A', 'b', 'c'])).1, [4, 5, 7, 8]);
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
