//! Causal attention over the paged cache: grouped queries, any number of query rows per sequence.
//!
//! The work is cut into pieces of (sequence, key head, some queries); the query heads of a group go
//! together, so that each key and value is read once for all of them. Within a piece, keys are taken
//! in chunks with the online softmax (Milakov and Gimelshein, 2018), everything in f32:
//!
//! ```text
//!             chunk 0 (128 keys)     chunk 1
//! query 0  |  s s s s s s s s  |  s s s . . .      s: score, '.': after the query
//! query 1  |  s s s s s s s s  |  s s s s . .      running maximum, sum and output per query
//! ```
//!
//! With each key that is scored its value is asked for, and with each value that is weighed a key of the next chunk, or
//! of the next head's first: pages lie scattered, and the processor foresees nothing across their borders. Asked for all at
//! once, they would come while nothing is computed.
//!
//! Where a window limits how far back a query sees, the keys before it are neither scored nor read,
//! but for those in its first page; the page table of a row may begin there:
//!
//! ```text
//! position   0 ......... 32 ........ 48 ........ 64 ....... 77        window 20, pages of 16
//! pages                   |  page 0   |  page 1   |  page 2  |        kv_length 78 - 32 = 46
//! query 77                              . . s s s s s s s s s s
//! ```
//!
//! A few chunks are a *segment*, which is summed on its own and then added to those before it. Where pieces are fewer
//! than threads would like, as with one long sequence, the segments of a piece are computed side by side (T. Dao et
//! al., "Flash-Decoding for long-context inference", 2023).
//!
//! Over latents (DeepSeek-AI, "DeepSeek-V2", 2024) all heads of a query are rows of one piece: they share one key, whose
//! first numbers are its value.
//!
//! Chunks and segments lie at fixed positions of the sequence and each row is summed in one order, so that its
//! result does not depend on the other rows, on how a prompt was cut, on where its page table begins,
//! or on the threads. O(queries * keys seen * heads * head_dim) time; memory is O(1) per thread, and O(segments) where
//! they are computed side by side.

mod by_heads;
mod by_latents;
mod inputs;
mod sums;
mod tiles;
mod walk;

use std::cell::RefCell;

use crate::element::Element;
use crate::isa::InstructionSet;
#[cfg(test)]
use crate::paged::Heads;
use crate::threads::{Shared, Threads};
pub use inputs::{Inputs, Mask, OfHeads, OfLatents, Source};
use sums::{Running, Sums};
use tiles::{Loops, tiles};
use walk::{Piece, Scratch, Walk};

/// Query rows (queries times heads of a group) in a piece.
const ROWS: usize = 32;
/// The same over latents, which are made floats once for all of them.
const LATENT_ROWS: usize = 64;
/// Pieces that a thread should have at least, so that all end at about the same time.
const PIECES_PER_THREAD: usize = 4;

/// Attention of every token of the step to its sequence's keys and values, into `out`,
/// \[tokens, query heads * elements of a value\].
///
/// # Panics
/// A slice is shorter than the step needs; see [`crate::step::Step::check`].
pub fn attend<T: Element>(threads: &Threads, inputs: &Inputs<'_, T>, out: &mut [T]) {
    attend_by(InstructionSet::best(), threads, inputs, out);
}

/// The same with a given instruction set.
fn attend_by<T: Element>(set: InstructionSet, threads: &Threads, inputs: &Inputs<'_, T>, out: &mut [T]) {
    let Inputs { step, heads, mask, .. } = *inputs;
    let dim = inputs.value_dim();
    assert!(dim.is_multiple_of(8) && heads.query.is_multiple_of(heads.kv), "unsupported heads");
    assert!(mask.sinks.is_empty() || mask.sinks.len() == heads.query, "a sink for each query head");
    let rows = match inputs.source {
        Source::Heads(_) => ROWS,
        Source::Latents(_) => LATENT_ROWS,
    };
    let per_piece = (rows / heads.group()).max(1);
    let mut pieces = Vec::with_capacity(step.num_rows * heads.kv);
    let mut operations = 0;
    for row in 0..step.num_rows {
        let queries = step.tokens(row).len();
        let reach = mask.window.or(mask.chunk).unwrap_or(usize::MAX);
        let keys = (step.kv_length[row] as usize).min(reach.saturating_add(queries));
        operations += queries * keys * heads.query * heads.dim;
        for head in 0..heads.kv {
            pieces.extend((0..queries).step_by(per_piece).map(|first| Piece {
                row,
                head,
                first,
                count: per_piece.min(queries - first),
            }));
        }
    }
    let loops = Loops { stored: tiles(set, dim), floats: tiles(set, dim) };
    let out = Shared::new(&mut out[..step.num_tokens * heads.query * dim]);
    let work = Work { inputs, loops, out };
    if threads.count() > 1 && pieces.len() < PIECES_PER_THREAD * threads.count() {
        work.by_segment(threads, &pieces, operations);
    } else {
        // Neighbouring heads lie side by side in a page: a thread that has asked for one has the next.
        let run = (pieces.len() / (PIECES_PER_THREAD * threads.count())).clamp(1, heads.kv);
        let runs: Vec<_> = pieces.chunks(run).collect();
        threads.share(runs.len(), operations, |index| work.run(runs[index]));
    }
}

/// What all pieces have in common.
struct Work<'a, T> {
    inputs: &'a Inputs<'a, T>,
    loops: Loops<T>,
    out: Shared<'a, T>,
}

thread_local! {
    /// What the piece that this thread works on needs.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// Its sums, and those of the segment that is added to them.
    static SUMS: RefCell<[Sums; 2]> = RefCell::default();
}

impl<T: Element> Work<'_, T> {
    /// Some pieces, one after the other.
    fn run(&self, pieces: &[Piece]) {
        for (index, &piece) in pieces.iter().enumerate() {
            let next = pieces.get(index + 1).map(|&next| Walk::new(next, self.inputs));
            self.whole(piece, next.as_ref());
        }
    }

    /// A piece, one segment after the other; `next` is the one that the thread comes to then.
    fn whole(&self, piece: Piece, next: Option<&Walk<'_, T>>) {
        let walk = Walk::new(piece, self.inputs);
        SUMS.with_borrow_mut(|[total, part]| {
            SCRATCH.with_borrow_mut(|scratch| {
                self.begin(piece, total);
                walk.rotate_queries(&self.loops, scratch);
                for segment in walk.segments() {
                    part.reset(walk.rows, self.inputs.value_dim());
                    walk.attend(segment, next, &self.loops, scratch, part);
                    total.add(part);
                }
                self.end(&walk, total);
            })
        });
    }

    /// All segments of all pieces side by side, then each piece's sum.
    fn by_segment(&self, threads: &Threads, pieces: &[Piece], operations: usize) {
        let walks: Vec<_> = pieces.iter().map(|&piece| Walk::new(piece, self.inputs)).collect();
        let parts: Vec<_> =
            walks.iter().flat_map(|walk| walk.segments().map(move |segment| (walk, segment))).collect();
        if parts.len() == pieces.len() {
            return threads.share(pieces.len(), operations, |index| self.whole(pieces[index], None));
        }
        let mut sums: Vec<Sums> = parts.iter().map(|_| Sums::default()).collect();
        let shared = Shared::new(&mut sums);
        threads.share(parts.len(), operations, |index| {
            SCRATCH.with_borrow_mut(|scratch| {
                let (walk, segment) = &parts[index];
                // SAFETY: each piece of work has sums of its own.
                let part = &mut unsafe { shared.part(index, 1) }[0];
                part.reset(walk.rows, self.inputs.value_dim());
                walk.rotate_queries(&self.loops, scratch);
                walk.attend(*segment, None, &self.loops, scratch, part);
            })
        });
        let mut parts = sums.iter();
        SUMS.with_borrow_mut(|[total, _]| {
            for (walk, &piece) in walks.iter().zip(pieces) {
                self.begin(piece, total);
                parts.by_ref().take(walk.segments().len()).for_each(|part| total.add(part));
                self.end(walk, total);
            }
        });
    }

    /// Sums with nothing in them but the sinks.
    fn begin(&self, piece: Piece, total: &mut Sums) {
        let Inputs { heads, mask, .. } = *self.inputs;
        let group = heads.group();
        total.reset(piece.count * group, self.inputs.value_dim());
        if let Some(sinks) = mask.sinks.get(piece.head * group..).filter(|sinks| !sinks.is_empty()) {
            for (running, &sink) in total.running.iter_mut().zip(sinks[..group].iter().cycle()) {
                *running = Running { maximum: sink, sum: 1.0 };
            }
        }
    }

    /// Writes the outputs of a piece.
    fn end(&self, walk: &Walk<'_, T>, total: &Sums) {
        let (query, dim) = (self.inputs.heads.query, self.inputs.value_dim());
        let (piece, group) = (walk.piece, self.inputs.heads.group());
        for index in 0..piece.count {
            let start = (walk.first_token + index) * query * dim + piece.head * group * dim;
            // SAFETY: a token and key head is in one piece only, since `query_start` rises.
            let target = unsafe { self.out.part(start, group * dim) };
            for (head, target) in target.chunks_exact_mut(dim).enumerate() {
                let row = index * group + head;
                let sum = total.running[row].sum;
                for (to, &from) in target.iter_mut().zip(&total.output[row * dim..][..dim]) {
                    *to = T::from_f32(from / sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
