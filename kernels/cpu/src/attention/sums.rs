//! Sums of some rows over some keys, as the online softmax keeps them, and adding them up.

use crate::math::exp;

/// A row's scores so far.
#[derive(Debug, Clone, Copy)]
pub struct Running {
    /// The largest.
    pub maximum: f32,
    /// Sum of e^(score - maximum).
    pub sum: f32,
}

impl Running {
    /// No score yet.
    const NONE: Self = Self { maximum: f32::NEG_INFINITY, sum: 0.0 };
}

/// Sums of some rows.
#[derive(Debug, Default)]
pub struct Sums {
    /// \[rows\].
    pub running: Vec<Running>,
    /// \[rows, dim\]: values times e^(score - maximum).
    pub output: Vec<f32>,
}

impl Sums {
    /// A number of rows with nothing in them.
    pub fn reset(&mut self, rows: usize, dim: usize) {
        self.running.clear();
        self.running.resize(rows, Running::NONE);
        self.output.clear();
        self.output.resize(rows * dim, 0.0);
    }

    /// Adds what `part` has of the same rows.
    pub fn add(&mut self, part: &Self) {
        let dim = self.output.len() / self.running.len().max(1);
        for (row, (running, part_of)) in self.running.iter_mut().zip(&part.running).enumerate() {
            if part_of.sum == 0.0 && part_of.maximum == f32::NEG_INFINITY {
                continue;
            }
            let maximum = running.maximum.max(part_of.maximum);
            let (before, after) =
                (exp::<false>(running.maximum - maximum), exp::<false>(part_of.maximum - maximum));
            running.sum = running.sum * before + part_of.sum * after;
            running.maximum = maximum;
            let (output, part) = (&mut self.output[row * dim..][..dim], &part.output[row * dim..][..dim]);
            for (sum, part) in output.iter_mut().zip(part) {
                *sum = *sum * before + part * after;
            }
        }
    }
}
