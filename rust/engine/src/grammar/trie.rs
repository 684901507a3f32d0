//! A trie of tokens by their bytes, laid out in the order of a walk.
//!
//! ```text
//!  nodes    a   ab   abc   b   ...        each node knows how many nodes its subtree has:
//!           4   2    1     ...            a walk that is refused at `ab` goes on behind `abc`
//! ```
//!
//! O(bytes of all tokens) to build.

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
}

/// What reads the bytes of a walk.
pub(crate) trait Reader {
    /// Takes the byte at `node`, as the `depth`-th; false if no token may have it there. Bytes at this depth and below
    /// that were taken before are forgotten.
    fn take(&mut self, depth: usize, byte: u8, node: u32) -> bool;

    /// A token ends with the byte that was taken last.
    fn token(&mut self, token: u32);
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
        Self { nodes: nodes.into() }
    }

    /// Walks all tokens.
    pub(crate) fn walk(&self, reader: &mut impl Reader) {
        self.walk_range(0, self.nodes.len() as u32, 0, reader);
    }

    /// Walks what comes after `node`, whose children have the depth 0.
    pub(crate) fn walk_below(&self, node: u32, reader: &mut impl Reader) {
        let at = self.nodes[node as usize];
        self.walk_range(node + 1, node + at.size, at.depth + 1, reader);
    }

    fn walk_range(&self, from: u32, to: u32, depth: u16, reader: &mut impl Reader) {
        let (nodes, mut at) = (&self.nodes[..to as usize], from as usize);
        while let Some(node) = nodes.get(at) {
            if reader.take(usize::from(node.depth - depth), node.byte, at as u32) {
                if node.token != NO_TOKEN {
                    reader.token(node.token);
                }
                at += 1;
            } else {
                at += node.size as usize;
            }
        }
    }

    /// The token that ends at `node`.
    pub(crate) fn token(&self, node: u32) -> Option<u32> {
        Some(self.nodes[node as usize].token).filter(|token| *token != NO_TOKEN)
    }

    /// The node at which these bytes end, that has all tokens that go on behind them; None if none begins so.
    pub(crate) fn node(&self, bytes: &[u8]) -> Option<u32> {
        let (first, rest) = bytes.split_first()?;
        let top = self.siblings(0, self.nodes.len() as u32);
        let mut node = top.filter(|(_, byte)| byte == first).last()?.0;
        for byte in rest {
            node = self.children(node).filter(|(_, other)| other == byte).last()?.0;
        }
        Some(node)
    }

    /// The nodes after `node`, each with its byte.
    fn children(&self, node: u32) -> impl Iterator<Item = (u32, u8)> + '_ {
        self.siblings(node + 1, node + self.nodes[node as usize].size)
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
