//! The device: what a pass reads and writes, and what the model says.

use std::collections::{BTreeMap, BTreeSet};

use super::{BLOCK, VOCABULARY};
use crate::step::buffers::{StepBuffers, header};

/// A cell's content for a sequence that begins with `tokens`: a function of all of them.
pub fn state(tokens: &[i32]) -> u64 {
    tokens.iter().fold(7, |state, token| {
        (state ^ *token as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) + 1
    })
}

/// The draft model's next token after `tokens`.
pub fn said(tokens: &[i32]) -> i32 {
    (state(tokens) % VOCABULARY) as i32
}

/// Moves the rows of a pass back by so many tokens of their slots; returns how many rows were moved.
pub fn move_rows(pass: &mut StepBuffers<'_>, wrong: &BTreeMap<i32, i32>) -> usize {
    let rows = 0..pass.header[header::NUM_ROWS] as usize;
    let moved: Vec<_> = rows.filter(|row| pass.assumed_drafts[*row] > 0).collect();
    assert_eq!(pass.header[header::NUM_MOVED_ROWS] as usize, moved.len());
    for &row in &moved {
        let back = wrong[&pass.row_sequence[row]];
        let pages = &pass.page_indices[pass.page_indptr[row] as usize..];
        pass.kv_length[row] -= back;
        for token in pass.query_start[row] as usize..pass.query_start[row + 1] as usize {
            pass.positions[token] -= back;
            let position = pass.positions[token] as usize;
            pass.slot_mapping[token] = pages[position / BLOCK] * BLOCK as i32 + (position % BLOCK) as i32;
        }
        for at in 0..pass.header[header::NUM_SAMPLED] as usize {
            if pass.sample_rows[at] as usize == row {
                pass.sample_position[at] -= i64::from(back);
            }
        }
    }
    moved.len()
}

/// The draft model: every cell that a token attends to must hold what belongs there.
pub fn compute(pass: &StepBuffers<'_>, cells: &mut [u64], chosen: &mut Vec<i32>, computed: &mut usize) {
    let rows = pass.header[header::NUM_ROWS] as usize;
    *computed += pass.header[header::NUM_TOKENS] as usize;
    let mut written = BTreeSet::new();
    for row in 0..rows {
        let pages = &pass.page_indices[pass.page_indptr[row] as usize..pass.page_indptr[row + 1] as usize];
        let cell = |position: usize| pages[position / BLOCK] as usize * BLOCK + position % BLOCK;
        for token in pass.query_start[row] as usize..pass.query_start[row + 1] as usize {
            let position = pass.positions[token] as usize;
            let before = if position == 0 { state(&[]) } else { cells[cell(position - 1)] };
            assert_eq!(pass.slot_mapping[token] as usize, cell(position));
            assert!(written.insert(cell(position)), "no cell is written twice in a pass");
            let id = pass.token_ids[token] as u64;
            cells[cell(position)] = (before ^ id).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) + 1;
        }
    }
    let sampled = pass.header[header::NUM_SAMPLED] as usize;
    let greedy = pass.sampling[..sampled].iter().filter(|rules| rules.temperature == 0.0).count();
    assert_eq!(pass.header[header::NUM_GREEDY] as usize, greedy);
    for at in 0..sampled {
        let row = pass.sample_rows[at] as usize;
        let last = pass.positions[pass.logit_token[at] as usize] as usize;
        assert_eq!(pass.logit_token[at] + 1, pass.query_start[row + 1]);
        assert_eq!((last + 1) as i64, pass.sample_position[at]);
        assert_eq!(last + 1, pass.kv_length[row] as usize);
        assert_eq!(pass.sampling[at].seed, 100 + pass.sample_sequence[at] as u64);
        let page = pass.page_indices[pass.page_indptr[row] as usize + last / BLOCK] as usize;
        chosen.push((cells[page * BLOCK + last % BLOCK] % VOCABULARY) as i32);
    }
}
