//! The device: what a pass reads and writes, and what the model says.

use std::collections::BTreeSet;

use super::{BLOCK, VOCABULARY};
use pyengine_scheduler::step::buffers::StepBuffers;

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

/// The draft model: every cell that a token attends to must hold what belongs there.
pub fn compute(pass: &StepBuffers<'_>, cells: &mut [u64], chosen: &mut Vec<i32>, computed: &mut usize) {
    let rows = pass.header.num_rows as usize;
    *computed += pass.header.num_tokens as usize;
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
    let sampled = pass.header.num_sampled as usize;
    let greedy = pass.sampling[..sampled].iter().filter(|rules| rules.temperature == 0.0).count();
    assert_eq!(pass.header.num_greedy as usize, greedy);
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
