//! Quantized weights as the kernels read them: values, scales and minimums by panel and group.
//!
//! ```text
//!  8 bits  a line is 4 inputs: byte j of an output is input j
//!  4 bits  a line is 8 inputs: byte j of an output is input j in the low half and input 4 + j in the high half
//! ```
//!
//! Values are unsigned here: signed ones are moved up by 128. An output's weight is `(value - zero) * scale - minimum`,
//! where `zero` is the same number for the whole matrix; zeros that differ by group become minimums.
//!
//! Floats of 4 bits (e2m1) lie as integers of 4 bits do. Twice such a float is a whole number from -12 to 12: that,
//! moved up by 12, is its value, and half of the power of two that its group has is the scale. A group has a byte for
//! its power (Open Compute Project, "Microscaling Formats (MX) Specification", 2023).

use super::panels::{self, Line, Lines, WIDTH};
use crate::math::half_power;

/// A quantized matrix \[outputs, inputs\] as files have it.
#[derive(Debug, Clone, Copy)]
pub struct Quantized<'a> {
    /// 8 bits: \[outputs, inputs\], two's complement if there are neither zeros nor minimums. 4 bits:
    /// \[outputs, inputs / 2\], the even input in the low half.
    pub values: &'a [u8],
    /// \[outputs, groups\].
    pub scales: &'a [f32],
    /// Weights are (value - zero) * scale: \[outputs, groups\].
    pub zeros: Option<&'a [u8]>,
    /// Weights are value * scale - minimum: \[outputs, groups\].
    pub minimums: Option<&'a [f32]>,
    /// 4 or 8.
    pub bits: usize,
    /// Inputs of a group, a multiple of 8 unless it is a whole row.
    pub group: usize,
}

/// A matrix \[outputs, inputs\] in MXFP4.
#[derive(Debug, Clone, Copy)]
pub struct Microscaled<'a> {
    /// Codes of e2m1, \[outputs, inputs / 2\], the even input in the low half.
    pub values: &'a [u8],
    /// Powers of two, moved up by 127 and none of them 255, for each 32 inputs: \[outputs, inputs / 32\].
    pub exponents: &'a [u8],
}

/// Inputs of a group of [`Microscaled`].
pub const MICROSCALED_GROUP: usize = 32;

/// Twice the floats that codes of e2m1 stand for, moved up by [`DOUBLED_ZERO`].
pub const DOUBLED: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// The value of zero in [`DOUBLED`].
const DOUBLED_ZERO: i32 = 12;

impl Quantized<'_> {
    fn is_symmetric(&self) -> bool {
        self.zeros.is_none() && self.minimums.is_none()
    }
}

/// A quantized matrix, packed.
#[derive(Debug)]
pub struct Packed {
    /// \[panels, groups, lines of a group\].
    pub lines: Lines<u32>,
    /// \[panels, groups\]; nothing where there are exponents.
    pub scales: Lines<f32>,
    /// Exponents of floats: \[panels, groups\].
    pub exponents: Lines<u8>,
    /// \[panels, groups\], or nothing.
    pub minimums: Lines<f32>,
    /// What is subtracted from every value.
    pub zero: i32,
    /// 4 or 8.
    pub bits: usize,
    /// Inputs of a group. The last group of a row is filled up with weights that meet activations of zero.
    pub group: usize,
    /// Groups of a row.
    pub groups: usize,
}

impl Packed {
    /// Packs `from`.
    ///
    /// # Panics
    /// An array has another length, or bits or group are not among those named there.
    pub fn new(from: &Quantized<'_>, inputs: usize, outputs: usize) -> Self {
        let (bits, source) = (from.bits, from.group.max(1));
        assert!(bits == 4 || bits == 8, "4 or 8 bits");
        assert!(bits == 8 || inputs.is_multiple_of(2), "whole bytes");
        assert_eq!(from.values.len(), outputs * inputs * bits / 8, "a value for every input and output");
        let source_groups = inputs.div_ceil(source);
        assert!(source.is_multiple_of(8) || source_groups == 1, "groups of a multiple of 8 inputs");
        assert_eq!(from.scales.len(), outputs * source_groups, "a scale for every group");
        assert!(
            from.zeros.is_none_or(|zeros| zeros.len() == outputs * source_groups),
            "a zero for every group"
        );
        assert!(
            from.minimums.is_none_or(|minimums| minimums.len() == outputs * source_groups),
            "a minimum for every group"
        );
        assert!(from.zeros.is_none() || from.minimums.is_none(), "zeros or minimums");

        let group = activation_group(source, inputs);
        let groups = inputs.div_ceil(group);
        let panels = outputs.div_ceil(WIDTH);
        let per_panel = groups * group * bits / 32;
        let mut lines = Lines::zeros(panels * per_panel);
        let width = inputs * bits / 8;
        if bits == 4 {
            panels::pack::<4, _, _>(from.values, width, &mut lines, per_panel, |pairs| {
                interleaved(word(pairs))
            });
        } else {
            let flip = if from.is_symmetric() { 0x8080_8080 } else { 0 };
            panels::pack::<4, _, _>(from.values, width, &mut lines, per_panel, |bytes| word(bytes) ^ flip);
        }
        // A group of the file may be several groups here.
        let by_group = |number: &dyn Fn(usize) -> f32| {
            let mut lines: Lines<f32> = Lines::zeros(panels * groups);
            for output in 0..outputs {
                for at in 0..groups {
                    let source = output * source_groups + at * group / source;
                    let Line(line) = &mut lines[output / WIDTH * groups + at];
                    line[output % WIDTH] = number(source);
                }
            }
            lines
        };
        let scales = by_group(&|at| from.scales[at]);
        let minimums = match (from.zeros, from.minimums) {
            (Some(zeros), _) => by_group(&|at| f32::from(zeros[at]) * from.scales[at]),
            (None, Some(minimums)) => by_group(&|at| minimums[at]),
            (None, None) => Lines::zeros(0),
        };
        let zero = if from.is_symmetric() { 1 << (bits - 1) } else { 0 };
        Self { lines, scales, exponents: Lines::zeros(0), minimums, zero, bits, group, groups }
    }

    /// Packs `from`.
    ///
    /// # Panics
    /// An array has another length, or inputs are not whole groups.
    pub fn microscaled(from: &Microscaled<'_>, inputs: usize, outputs: usize) -> Self {
        let (bits, group) = (4, MICROSCALED_GROUP);
        assert!(inputs.is_multiple_of(group), "whole groups");
        let (groups, panels) = (inputs / group, outputs.div_ceil(WIDTH));
        assert_eq!(from.values.len(), outputs * inputs / 2, "a value for every input and output");
        assert_eq!(from.exponents.len(), outputs * groups, "an exponent for every group");
        let per_panel = inputs * bits / 32;
        let mut lines = Lines::zeros(panels * per_panel);
        panels::pack::<4, _, _>(from.values, inputs / 2, &mut lines, per_panel, |pairs| {
            interleaved(word(pairs))
        });
        let mut exponents = Lines::zeros(panels * groups);
        panels::pack::<1, _, _>(from.exponents, groups, &mut exponents, groups, |exponent| exponent[0]);
        let (scales, minimums) = (Lines::zeros(0), Lines::zeros(0));
        Self { lines, scales, exponents, minimums, zero: DOUBLED_ZERO, bits, group, groups }
    }

    /// Whether values are floats, and scales exponents.
    pub fn is_microscaled(&self) -> bool {
        !self.exponents.is_empty()
    }

    /// Bytes of values, scales and minimums.
    pub fn nbytes(&self) -> usize {
        self.lines.nbytes() + self.scales.nbytes() + self.exponents.nbytes() + self.minimums.nbytes()
    }

    /// The weight of an output for an input, rounded to float32 after each operation. O(1).
    pub fn weight(&self, output: usize, input: usize) -> f32 {
        let (panel, lane) = (output / WIDTH, output % WIDTH);
        let line = panel * self.per_panel() + input * self.bits / 32;
        let word = self.lines[line].0[lane];
        let value = match self.bits {
            4 => word >> (input % 4 * 8 + input % 8 / 4 * 4) & 15,
            _ => word >> (input % 4 * 8) & 255,
        };
        let group = panel * self.groups + input / self.group;
        let (value, scale) = match self.exponents.get(group) {
            Some(exponents) => (u32::from(DOUBLED[value as usize]), half_power(exponents.0[lane])),
            None => (value, self.scales[group].0[lane]),
        };
        let weight = (value as i32 - self.zero) as f32 * scale;
        match self.minimums.get(group) {
            Some(minimums) => weight - minimums.0[lane],
            None => weight,
        }
    }

    /// Lines of a panel.
    pub fn per_panel(&self) -> usize {
        self.groups * self.group * self.bits / 32
    }
}

/// Inputs that share a scale of activations: the group of the weights, but at most 128.
fn activation_group(source: usize, inputs: usize) -> usize {
    if source <= 128 && source.is_multiple_of(8) {
        return source;
    }
    [128, 64, 32].into_iter().find(|&group| inputs.is_multiple_of(group)).unwrap_or(32)
}

/// Up to four bytes, the first the lowest.
fn word(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte))
}

/// From the halves 0 1 2 3 4 5 6 7 of four bytes, the lowest first, to 0 4 1 5 2 6 3 7.
fn interleaved(pairs: u32) -> u32 {
    let half = |at: u32| pairs >> (4 * at) & 15;
    (0..4).fold(0, |word, at| word | half(at) << (8 * at) | half(at + 4) << (8 * at + 4))
}
