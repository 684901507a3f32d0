//! Prompt lookup: what followed the last few tokens when they occurred before in this request.
//!
//! ```text
//!  prompt: ... def main ( ) : ...            output: ... def main
//!              └4-gram┘ └ continuation               └4-gram┘ → draft: ( ) : ...
//! ```
//!
//! For each length n of 4, 3 and 2 a table holds, for every n-gram, the position after its latest occurrence.
//! The table keeps positions only; the text itself tells n-grams apart. Adding a token and looking up are O(1)
//! a length, 12 to 28 bytes a token. The idea is Saxena's prompt lookup decoding (2023).

use std::hash::Hasher;

use hashbrown::HashTable;
use rustc_hash::FxHasher;

use super::{Class, KEPT, Proposer, Source, Text, View};

/// Lengths of the n-grams, best first.
const LENGTHS: [usize; 3] = [4, 3, 2];

/// Most tokens before a continuation that are compared to tell how good the evidence is.
const COMPARED: usize = 16;

/// The positions after the latest occurrence of each n-gram.
#[derive(Default)]
pub(super) struct NgramIndex {
    tables: [HashTable<u32>; LENGTHS.len()],
}

fn hash(ngram: impl Iterator<Item = u32>) -> u64 {
    let mut hasher = FxHasher::default();
    ngram.for_each(|token| hasher.write_u32(token));
    hasher.finish()
}

impl NgramIndex {
    /// Adds `tokens[at]`, which follows the n-grams before it.
    fn append(&mut self, tokens: &[u32], at: usize) {
        for (table, length) in self.tables.iter_mut().zip(LENGTHS) {
            if at < length {
                continue;
            }
            let ngram = |end: u32| &tokens[end as usize - length..end as usize];
            let here = ngram(at as u32);
            let entry = table.entry(
                hash(here.iter().copied()),
                |&end| ngram(end) == here,
                |&end| hash(ngram(end).iter().copied()),
            );
            *entry.or_insert(at as u32).into_mut() = at as u32;
        }
    }

    /// Forgets everything; memory is kept up to `kept` n-grams of a length.
    fn forget(&mut self, kept: usize) {
        for table in &mut self.tables {
            table.clear();
            if table.capacity() > kept {
                *table = HashTable::new();
            }
        }
    }

    /// The position after the latest earlier occurrence of the text's last tokens, of as many as there are.
    fn find(&self, text: Text<'_>) -> Option<usize> {
        let end = text.len();
        self.tables.iter().zip(LENGTHS).find_map(|(table, length)| {
            let start = end.checked_sub(length)?;
            let ngram = || (start..end).map(|at| text.get(at));
            let same = |&at: &u32| text.tokens[at as usize - length..at as usize].iter().copied().eq(ngram());
            table.find(hash(ngram()), same).map(|&at| at as usize)
        })
    }

    /// The class tells how many tokens before the continuation are the same: 2, 3, 4, 8, 16 or more.
    fn draft(&self, text: Text<'_>, limit: usize, draft: &mut Vec<u32>) -> Class {
        let Some(position) = self.find(text) else { return 0 };
        let begin = draft.len();
        for at in position..position + limit {
            // A text that repeats itself up to its end goes on doing so: the draft is read as part of the text.
            let token = if at < text.len() { text.get(at) } else { draft[begin + at - text.len()] };
            draft.push(token);
        }
        match text.common_suffix(position, COMPARED) {
            ..3 => 0,
            3 => 1,
            4..8 => 2,
            8..16 => 3,
            _ => 4,
        }
    }
}

impl Proposer for NgramIndex {
    fn source(&self) -> Source {
        Source::Ngram
    }

    fn index(&mut self, tokens: &[u32], at: usize) {
        self.append(tokens, at);
    }

    fn clear(&mut self) {
        self.forget(KEPT);
    }

    fn propose(&self, sequence: View<'_>, forced: &[u32], limit: usize, draft: &mut Vec<u32>) -> Class {
        self.draft(Text { tokens: sequence.tokens, ahead: forced }, limit, draft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOTHING: [u32; 0] = [];

    fn index(tokens: &[u32]) -> NgramIndex {
        let mut index = NgramIndex::default();
        (0..tokens.len()).for_each(|at| index.append(tokens, at));
        index
    }

    fn draft(tokens: &[u32], ahead: &[u32], limit: usize) -> (Vec<u32>, Class) {
        let mut draft = vec![];
        let class = index(tokens).draft(Text { tokens, ahead }, limit, &mut draft);
        (draft, class)
    }

    #[test]
    fn what_followed_last_time() {
        assert_eq!(draft(&[1, 2, 3, 9, 1, 2, 4, 9, 1, 2], &[], 3).0, [4, 9, 1]);
        assert_eq!(draft(&[1, 2, 3], &[], 3).0, NOTHING);
        assert_eq!(draft(&[1, 2, 3, 9, 1, 2, 4, 9, 1], &[2], 2).0, [4, 9], "after what is forced");
    }

    #[test]
    fn what_repeats_goes_on() {
        assert_eq!(draft(&[1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3], &[], 7), (vec![1, 2, 3, 1, 2, 3, 1], 3));
    }

    #[test]
    fn nothing_is_left_of_what_was_cleared() {
        let tokens = [1, 2, 1, 2];
        for kept in [0, 100] {
            let mut index = index(&tokens);
            index.forget(kept);
            let mut draft = vec![];
            index.draft(Text { tokens: &tokens, ahead: &[] }, 4, &mut draft);
            assert!(draft.is_empty());
        }
    }

    proptest! {
        /// The longest n-gram wins, and of its occurrences the latest.
        #[test]
        fn like_a_search(text in prop::collection::vec(0u32..4, 0..60), split in 0usize..4, limit in 0usize..6) {
            let split = text.len().saturating_sub(split);
            let (tokens, ahead) = text.split_at(split);
            let expected = LENGTHS.iter().find_map(|&n| {
                (n..tokens.len()).rev().find(|&at| n <= text.len() && text[at - n..at] == text[text.len() - n..])
            });
            let (got, class) = draft(tokens, ahead, limit);
            match expected {
                None => prop_assert!(got.is_empty()),
                Some(position) => {
                    let mut all = text.clone();
                    for k in 0..limit { all.push(all[position + k]); }
                    prop_assert_eq!(&got[..], &all[text.len()..]);
                    let same = (0..position).take_while(|&b| text[position - 1 - b] == text[text.len() - 1 - b]).count();
                    let bounds = [3, 4, 8, 16].iter().filter(|&&bound| same >= bound).count();
                    prop_assert_eq!(usize::from(class), bounds);
                }
            }
        }
    }
}
