//! Weights of 4 and 8 bits, with zeros or minimums.

use super::*;

/// A matrix of random values, and the weights that it means in float64.
pub struct Random {
    values: Vec<u8>,
    scales: Vec<f32>,
    zeros: Vec<u8>,
    minimums: Vec<f32>,
    bits: usize,
    group: usize,
    inputs: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Offset {
    None,
    Zeros,
    Minimums,
}

impl Random {
    pub fn new(outputs: usize, inputs: usize, bits: usize, group: usize, seed: u64) -> Self {
        let bytes = |count: usize, seed| -> Vec<u8> {
            numbers(count, seed).iter().map(|number| (number * 128.0).floor() as i32 as u8).collect()
        };
        let count = outputs * inputs.div_ceil(group);
        Self {
            values: bytes(outputs * inputs * bits / 8, seed),
            scales: numbers(count, seed ^ 1).iter().map(|number| number / 16.0).collect(),
            zeros: bytes(count, seed ^ 2).iter().map(|zero| zero >> (8 - bits)).collect(),
            minimums: numbers(count, seed ^ 3),
            bits,
            group,
            inputs,
        }
    }

    pub fn quantized(&self, offset: Offset) -> Quantized<'_> {
        Quantized {
            values: &self.values,
            scales: &self.scales,
            zeros: (offset == Offset::Zeros).then_some(&self.zeros),
            minimums: (offset == Offset::Minimums).then_some(&self.minimums),
            bits: self.bits,
            group: self.group,
        }
    }

    pub fn weight(&self, output: usize, input: usize, offset: Offset) -> f64 {
        let index = output * self.inputs + input;
        let value = match self.bits {
            8 if offset == Offset::None => f64::from(self.values[index] as i8),
            8 => f64::from(self.values[index]),
            _ => f64::from(self.values[index / 2] >> (index % 2 * 4) & 15),
        };
        let group = output * self.inputs.div_ceil(self.group) + input / self.group;
        let scale = f64::from(self.scales[group]);
        match offset {
            Offset::None => (value - if self.bits == 4 { 8.0 } else { 0.0 }) * scale,
            Offset::Zeros => (value - f64::from(self.zeros[group])) * scale,
            Offset::Minimums => value * scale - f64::from(self.minimums[group]),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn quantized_layers_are_the_product_and_the_same_bits_in_any_company(
        rows in prop_oneof![4 => 1usize..20, 1 => 90usize..120], groups in 1usize..5, outputs in 1usize..150,
        bits in prop_oneof![Just(4usize), Just(8)], group in prop_oneof![Just(16usize), Just(32), Just(64), Just(128)],
        whole_rows: bool, narrow_x: bool, biased: bool, seed: u64, threads in 1usize..4,
        offset in prop_oneof![Just(Offset::None), Just(Offset::Zeros), Just(Offset::Minimums)],
    ) {
        let inputs = groups * group;
        let matrix = Random::new(outputs, inputs, bits, if whole_rows { inputs } else { group }, seed);
        let bias = numbers(if biased { outputs } else { 0 }, seed ^ 7);
        let layer = Linear::packed(&matrix.quantized(offset), &bias, inputs, outputs);
        let x = numbers(rows * inputs, seed ^ 8);
        let x16 = narrow(&x);
        let taken = if narrow_x { Rows::Halves(&x16) } else { Rows::Floats(&x) };
        let wanted = run(InstructionSet::best(), 1, &layer, taken);
        let exact_x = if narrow_x { widened(&x16) } else { x.clone() };
        for row in [0, rows / 2, rows - 1] {
            for (output, &got) in wanted[row * outputs..][..outputs].iter().enumerate() {
                let (mut exact, mut bound) = (bias.get(output).map_or(0.0, |&bias| f64::from(bias)), 1e-3);
                for input in 0..inputs {
                    let weight = matrix.weight(output, input, offset);
                    exact += weight * f64::from(exact_x[row * inputs + input]);
                    // Half a step of 1 / 127 of the largest activation, which is below 1.
                    bound += weight.abs() * 0.5001 / 127.0;
                }
                prop_assert!((f64::from(got) - exact).abs() <= bound, "{got} {exact} {bound}");
            }
        }
        for set in InstructionSet::all_here() {
            let out = run(set, threads, &layer, taken);
            prop_assert!(same_bits(&out, &wanted), "{set:?} differs");
            for row in [0, rows - 1] {
                let alone = run(set, 1, &layer, one_row(taken, row, inputs));
                prop_assert!(same_bits(&alone, &out[row * outputs..][..outputs]), "{set:?}, row {row}");
            }
        }
    }
}

#[test]
fn the_largest_values_do_not_overflow() {
    let (inputs, outputs) = (256, 3);
    let values = vec![255; inputs * outputs];
    let scales = vec![1.0; outputs];
    let zeros = vec![0; outputs];
    let from = Quantized {
        values: &values,
        scales: &scales,
        zeros: Some(&zeros),
        minimums: None,
        bits: 8,
        group: inputs,
    };
    let layer = Linear::packed(&from, &[], inputs, outputs);
    for x in [1.0, -1.0] {
        for set in InstructionSet::all_here() {
            let out = run(set, 1, &layer, Rows::Floats(&vec![x; inputs]));
            assert!(out.iter().all(|out| (out / x - 65280.0).abs() < 0.1), "{set:?} {out:?}");
        }
    }
}

#[test]
fn a_row_of_zeros_gives_the_bias() {
    let matrix = Random::new(2, 32, 4, 32, 5);
    let layer = Linear::packed(&matrix.quantized(Offset::Minimums), &[0.5, -2.0], 32, 2);
    assert_eq!(run(InstructionSet::best(), 1, &layer, Rows::Floats(&[0.0; 32])), [0.5, -2.0]);
}

#[test]
fn the_largest_numbers_do_not_overflow_their_sums() {
    let (inputs, outputs) = (128, 70);
    let (scales, minimums) = (vec![1.0; outputs * inputs / 32], vec![0.0; outputs * inputs / 32]);
    let layer = |bits: usize, byte: u8| {
        let (values, minimums) = (vec![byte; outputs * inputs * bits / 8], (bits == 4).then_some(&*minimums));
        let from = Quantized { values: &values, scales: &scales, zeros: None, minimums, bits, group: 32 };
        Linear::packed(&from, &[], inputs, outputs)
    };
    let values = vec![0x77; outputs * inputs / 2];
    let from = Microscaled { values: &values, exponents: &vec![127; outputs * inputs / 32] };
    let floats = Linear::microscaled(&from, &[], inputs, outputs);
    for (layer, weight) in [(layer(4, 0xff), 15.0), (layer(8, 0x80), -128.0), (floats, 6.0)] {
        for set in InstructionSet::all_here() {
            for (rows, x) in [(1, 1.0f32), (2, -1.0), (3, 1.0), (4, -1.0), (5, 1.0)] {
                for out in run(set, 1, &layer, Rows::Floats(&vec![x; rows * inputs])) {
                    let exact = weight * x * inputs as f32;
                    assert!((out - exact).abs() < 0.01, "{set:?}, {rows} rows: {out} {exact}");
                }
            }
        }
    }
}
