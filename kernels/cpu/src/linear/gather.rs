//! Weights of some outputs, as numbers: a table that is looked up in, such as embeddings.
//!
//! A table may be a head's weights too, so it is stored as a layer. An output's weights lie a line apart; the processor
//! foresees such strides.

use half::bf16;

use super::panels::WIDTH;
use super::{Linear, Section, Weights};
use crate::element::Element;
use crate::threads::{Shared, Threads};

/// The weights of the outputs `index`, in their order, into `out` \[outputs asked for, inputs\]; biases are left out.
/// O(numbers written).
///
/// # Errors
/// An index that is no output of the layer, which is returned. What `out` is then is not said.
///
/// # Panics
/// `out` has not as many rows as there are indices.
pub fn gather<T: Element>(
    threads: &Threads,
    table: &Linear,
    index: &[i32],
    out: &mut [T],
) -> Result<(), i32> {
    let inputs = table.inputs;
    assert_eq!(out.len(), index.len() * inputs, "a row for every index");
    let is_output = |&at: &i32| usize::try_from(at).is_ok_and(|at| at < table.outputs);
    if let Some(&other) = index.iter().find(|at| !is_output(at)) {
        return Err(other);
    }
    let operations = out.len() * 8;
    let out = Shared::new(out);
    threads.share(index.len(), operations, |at| {
        let output = index[at] as usize;
        let section = table.sections.iter().rfind(|section| section.first <= output);
        // SAFETY: each row is one piece.
        let out = unsafe { out.part(at * inputs, inputs) };
        if let Some(section) = section {
            section.weights_of(output - section.first, inputs, out);
        }
    });
    Ok(())
}

impl Section {
    /// The weights of one of its outputs.
    fn weights_of<T: Element>(&self, output: usize, inputs: usize, out: &mut [T]) {
        let (panel, lane) = (output / WIDTH, output % WIDTH);
        match &*self.weights {
            Weights::Floats(lines) => {
                for (to, line) in out.iter_mut().zip(&lines[panel * inputs..]) {
                    *to = T::from_f32(line.0[lane]);
                }
            }
            Weights::Pairs(lines) => {
                let lines = &lines[panel * inputs.div_ceil(2)..];
                for (pair, line) in out.chunks_mut(2).zip(lines) {
                    let halves = [line.0[lane] as u16, (line.0[lane] >> 16) as u16];
                    for (to, bits) in pair.iter_mut().zip(halves) {
                        *to = T::from_f32(bf16::from_bits(bits).to_f32());
                    }
                }
            }
            Weights::Packed(packed) => {
                for (input, to) in out.iter_mut().enumerate() {
                    *to = T::from_f32(packed.weight(output, input));
                }
            }
        }
    }
}
