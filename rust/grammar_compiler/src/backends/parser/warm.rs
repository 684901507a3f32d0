//! Masks that are made before a request asks for them.
//!
//! ```text
//!  {" ─► name ─► ": ─►  " ─► inside ─► " ─► ...       from each place to those behind its likely tokens, breadth first
//! ```
//!
//! O(1) places, each a mask.

use std::collections::VecDeque;

use anyhow::Result;
use rustc_hash::FxHashSet;

use super::automaton::Automaton;
use super::place::Place;
use super::states::States;
use crate::context::Tokens;

/// Masks that are made.
const MAX_MASKS: usize = 512;
/// Where more tokens may come, it is taken for the inside of a string.
const MAX_LISTED: usize = 256;
/// Where no more tokens than this may come, each that no other begins with is followed; else the short ones.
const FEW: usize = 16;
/// How many bytes a short one has.
const SHORT: usize = 2;
/// Bytes that lead through most strings, at their beginning and behind.
const LIKELY: &[u8] = b"\"a\\";
const END: &[u8] = b"\"";

impl Automaton {
    /// Makes the masks that texts come to first, until `stop` says so.
    ///
    /// # Errors
    /// The parser has given up.
    pub fn warm(&self, stop: &dyn Fn() -> bool) -> Result<()> {
        let first = self.work(|inner, _| inner.first())?;
        let (mut places, mut known) = (VecDeque::from([(first, true)]), FxHashSet::from_iter([first]));
        let mut made = 0;
        while let Some((place, by_token)) = places.pop_front() {
            if stop() || made == MAX_MASKS || self.is_retired() {
                break;
            }
            made += 1;
            // Requests wait for the lock meanwhile: one mask at a time.
            let further = self.work(|inner, tokens| {
                if inner.is_over(place) {
                    return Ok(Further { places: Vec::new(), is_list: true });
                }
                let mask = inner.mask(tokens, place, self.number)?;
                Ok::<_, anyhow::Error>(match mask.listed(MAX_LISTED) {
                    Some(listed) => inner.behind_tokens(tokens, place, &listed),
                    None => inner.behind_bytes(place, if by_token { LIKELY } else { END }),
                })
            })??;
            let by_token = further.is_list;
            places.extend(
                further.places.into_iter().filter(|next| known.insert(*next)).map(|next| (next, by_token)),
            );
        }
        Ok(())
    }
}

/// Places, and whether whole tokens lead to them.
struct Further {
    places: Vec<Place>,
    is_list: bool,
}

impl States {
    /// The places behind the bytes that lead through most strings.
    fn behind_bytes(&mut self, place: Place, bytes: &[u8]) -> Further {
        let places = bytes.iter().filter_map(|byte| self.push(place, *byte)).collect();
        Further { places, is_list: false }
    }

    /// The places behind the tokens that are likely to come.
    fn behind_tokens(&mut self, tokens: &Tokens, place: Place, listed: &[u32]) -> Further {
        let text = |token: &u32| tokens.text_bytes(*token);
        let goes_on = |token: &u32| {
            let longer = |other: &u32| text(other).len() > text(token).len();
            listed.iter().any(|other| longer(other) && text(other).starts_with(text(token)))
        };
        let is_likely = |token: &&u32| match listed.len() {
            0..=FEW => text(token).is_empty() || !goes_on(token),
            _ => (1..=SHORT).contains(&text(token).len()),
        };
        let likely = listed.iter().filter(is_likely).take(FEW);
        let places = likely.filter_map(|token| self.take(tokens, place, *token)).collect();
        Further { places, is_list: true }
    }
}
