use half::bf16;
use proptest::prelude::*;

use super::*;

/// Numbers from -1 to 1 that look random.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn narrow(numbers: &[f32]) -> Vec<bf16> {
    numbers.iter().map(|&number| Element::from_f32(number)).collect()
}

fn widened(numbers: &[bf16]) -> Vec<f32> {
    numbers.iter().map(|&number| Element::to_f32(number)).collect()
}

fn run(set: InstructionSet, threads: usize, layer: &Linear, x: Rows<'_>) -> Vec<f32> {
    let rows = x.len() / layer.inputs;
    let mut out = vec![f32::NAN; rows * layer.outputs];
    linear_by(set, &Threads::new(threads).unwrap(), layer, x, &mut out);
    out
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// The rows `row..row + 1` of `x`.
fn one_row(x: Rows<'_>, row: usize, inputs: usize) -> Rows<'_> {
    match x {
        Rows::Floats(x) => Rows::Floats(&x[row * inputs..][..inputs]),
        Rows::Halves(x) => Rows::Halves(&x[row * inputs..][..inputs]),
    }
}

/// Whether this set's float32 additions are fused, as those of all others are.
fn fuses(set: InstructionSet) -> bool {
    set != InstructionSet::Portable || cfg!(any(target_feature = "fma", target_arch = "aarch64"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_is_the_product_and_the_same_bits_in_any_company(
        rows in prop_oneof![4 => 1usize..20, 1 => 90usize..200], inputs in 1usize..70,
        outputs in prop_oneof![2 => 1usize..200, 1 => 450usize..900], seed: u64, biased: bool, narrow_x: bool, narrow_weight: bool, threads in 1usize..4,
    ) {
        let (weight, x) = (numbers(inputs * outputs, seed), numbers(rows * inputs, seed ^ 1));
        let (weight16, x16) = (narrow(&weight), narrow(&x));
        let bias = numbers(if biased { outputs } else { 0 }, seed ^ 2);
        let stored = if narrow_weight { Rows::Halves(&weight16) } else { Rows::Floats(&weight) };
        let layer = Linear::dense(stored, &bias, inputs, outputs);
        let taken = if narrow_x { Rows::Halves(&x16) } else { Rows::Floats(&x) };
        let (exact_weight, exact_x) = (widened(&weight16), widened(&x16));
        let weight = if narrow_weight { &exact_weight } else { &weight };
        let x = if narrow_x { &exact_x } else { &x };

        let wanted = run(InstructionSet::best(), 1, &layer, taken);
        for (row, out) in wanted.chunks(outputs).enumerate() {
            for (output, &got) in out.iter().enumerate() {
                let terms = weight[output * inputs..][..inputs].iter().zip(&x[row * inputs..]);
                let exact: f64 = terms.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let exact = exact + bias.get(output).map_or(0.0, |bias| f64::from(*bias));
                prop_assert!((f64::from(got) - exact).abs() < 1e-4, "{got} {exact}");
            }
        }
        for set in InstructionSet::all_here() {
            let out = run(set, threads, &layer, taken);
            prop_assert!(
                same_bits(&out, &wanted) || !fuses(set) && !narrow_x || !fuses(set) && !narrow_weight,
                "{set:?} differs"
            );
            for row in [0, rows / 2, rows - 1] {
                let alone = run(set, 1, &layer, one_row(taken, row, inputs));
                prop_assert!(same_bits(&alone, &out[row * outputs..][..outputs]), "{set:?}, row {row}");
            }
        }
    }

    #[test]
    fn float32_rows_see_no_difference_between_bfloat16_weights_and_the_same_in_float32(
        rows in 1usize..9, inputs in 1usize..50, outputs in 1usize..150, seed: u64,
    ) {
        let (weight, x) = (narrow(&numbers(inputs * outputs, seed)), numbers(rows * inputs, seed ^ 1));
        let wide = widened(&weight);
        let stored = Linear::dense(Rows::Halves(&weight), &[], inputs, outputs);
        let wide = Linear::dense(Rows::Floats(&wide), &[], inputs, outputs);
        for set in InstructionSet::all_here() {
            let x = Rows::Floats(&x);
            prop_assert!(same_bits(&run(set, 1, &stored, x), &run(set, 1, &wide, x)), "{set:?}");
        }
    }
}

#[test]
fn long_rows_go_block_by_block() {
    let (rows, inputs, outputs) = (20, 3001, 130);
    let (weight, x) = (narrow(&numbers(inputs * outputs, 3)), narrow(&numbers(rows * inputs, 4)));
    let layer = Linear::dense(Rows::Halves(&weight), &[], inputs, outputs);
    let wanted = run(InstructionSet::best(), 1, &layer, Rows::Halves(&x));
    for set in InstructionSet::all_here() {
        assert!(same_bits(&run(set, 2, &layer, Rows::Halves(&x)), &wanted), "{set:?}");
        for row in [0, 19] {
            let alone = run(set, 1, &layer, one_row(Rows::Halves(&x), row, inputs));
            assert!(same_bits(&alone, &wanted[row * outputs..][..outputs]), "{set:?}, row {row}");
        }
    }
}

#[test]
fn sums_are_rounded_once_to_what_comes_out() {
    let layer = Linear::dense(Rows::Floats(&[1.0, 1.0 / 256.0]), &[], 2, 1);
    let mut out = [bf16::ZERO; 2];
    linear(&Threads::new(1).unwrap(), &layer, &[1.0f32, 1.0, 1.0, 2.0], &mut out);
    assert_eq!(out, [bf16::from_f32(1.0), bf16::from_f32(1.0078125)]);
}

#[test]
fn nothing_is_a_product_too() {
    let threads = Threads::new(1).unwrap();
    let dense = |weight: &[f32], inputs, outputs| Linear::dense(Rows::Floats(weight), &[], inputs, outputs);
    linear::<f32, f32>(&threads, &dense(&[], 0, 0), &[], &mut []);
    linear::<f32, f32>(&threads, &dense(&[], 4, 0), &[], &mut []);
    let mut out = [1.0f32; 3];
    linear::<f32, _>(&threads, &dense(&[], 0, 3), &[], &mut out);
    assert_eq!(out, [0.0; 3]);
    linear::<f32, f32>(&threads, &dense(&[1.0; 4], 2, 2), &[], &mut []);
}

#[test]
#[should_panic(expected = "whole rows")]
fn rows_that_are_not_whole_are_refused() {
    let layer = Linear::dense(Rows::Floats(&[1.0; 6]), &[], 3, 2);
    linear(&Threads::new(1).unwrap(), &layer, &[0.0f32; 5], &mut [0.0f32; 2]);
}

/// A matrix of random values, and the weights that it means in float64.
struct Random {
    values: Vec<u8>,
    scales: Vec<f32>,
    zeros: Vec<u8>,
    minimums: Vec<f32>,
    bits: usize,
    group: usize,
    inputs: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Offset {
    None,
    Zeros,
    Minimums,
}

impl Random {
    fn new(outputs: usize, inputs: usize, bits: usize, group: usize, seed: u64) -> Self {
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

    fn quantized(&self, offset: Offset) -> Quantized<'_> {
        Quantized {
            values: &self.values,
            scales: &self.scales,
            zeros: (offset == Offset::Zeros).then_some(&self.zeros),
            minimums: (offset == Offset::Minimums).then_some(&self.minimums),
            bits: self.bits,
            group: self.group,
        }
    }

    fn weight(&self, output: usize, input: usize, offset: Offset) -> f64 {
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

/// A matrix of random codes and exponents.
struct RandomFloats {
    values: Vec<u8>,
    exponents: Vec<u8>,
    inputs: usize,
}

impl RandomFloats {
    fn new(outputs: usize, inputs: usize, seed: u64) -> Self {
        let bytes = |count: usize, seed, size: f32| -> Vec<u8> {
            numbers(count, seed).iter().map(|number| ((number + 1.0) * size).floor() as i32 as u8).collect()
        };
        let exponents = bytes(outputs * inputs / 32, seed ^ 1, 4.0);
        Self {
            values: bytes(outputs * inputs / 2, seed, 128.0),
            exponents: exponents.iter().map(|exponent| exponent + 119).collect(),
            inputs,
        }
    }

    fn layer(&self, bias: &[f32], outputs: usize) -> Linear {
        let from = Microscaled { values: &self.values, exponents: &self.exponents };
        Linear::microscaled(&from, bias, self.inputs, outputs)
    }

    /// The number that is meant, by the words of the specification.
    fn weight(&self, output: usize, input: usize) -> f64 {
        let at = output * self.inputs + input;
        let code = self.values[at / 2] >> (at % 2 * 4) & 15;
        let (sign, exponent, mantissa) = (code >> 3, i32::from(code >> 1 & 3), f64::from(code & 1));
        let size =
            if exponent == 0 { mantissa / 2.0 } else { (1.0 + mantissa / 2.0) * 2f64.powi(exponent - 1) };
        let power = i32::from(self.exponents[at / MICROSCALED_GROUP]) - 127;
        size * 2f64.powi(power) * if sign == 1 { -1.0 } else { 1.0 }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn microscaled_layers_are_those_of_integers_of_8_bits_that_mean_the_same(
        rows in prop_oneof![4 => 1usize..20, 1 => 90usize..120], groups in 1usize..5, outputs in 1usize..150,
        narrow_x: bool, biased: bool, seed: u64, threads in 1usize..4,
    ) {
        let inputs = groups * MICROSCALED_GROUP;
        let matrix = RandomFloats::new(outputs, inputs, seed);
        let bias = numbers(if biased { outputs } else { 0 }, seed ^ 7);
        let layer = matrix.layer(&bias, outputs);
        let power = |exponent: &u8| 2f32.powi(i32::from(*exponent) - 128);
        let scales: Vec<f32> = matrix.exponents.iter().map(power).collect();
        let number = |at: usize| {
            let scale = f64::from(scales[at / MICROSCALED_GROUP]);
            (matrix.weight(at / inputs, at % inputs) / scale) as i8 as u8
        };
        let values: Vec<u8> = (0..outputs * inputs).map(number).collect();
        let wide = Quantized {
            values: &values, scales: &scales, zeros: None, minimums: None, bits: 8, group: MICROSCALED_GROUP,
        };
        let wide = Linear::packed(&wide, &bias, inputs, outputs);
        let x = numbers(rows * inputs, seed ^ 8);
        let x16 = narrow(&x);
        let taken = if narrow_x { Rows::Halves(&x16) } else { Rows::Floats(&x) };
        let wanted = run(InstructionSet::best(), 1, &wide, taken);
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
fn every_exponent_means_its_power() {
    let exponents: Vec<u8> = (0..255).collect();
    let codes: Vec<u8> = (0..16).map(|byte| (byte % 8 * 2) | ((byte % 8 * 2 + 1) << 4)).collect();
    let values = codes.repeat(exponents.len());
    let matrix = RandomFloats { values, exponents, inputs: 32 };
    let table = matrix.layer(&[], 255);
    let index: Vec<i32> = (0..255).collect();
    let mut out = vec![f32::NAN; 255 * 32];
    gather(&Threads::new(1).unwrap(), &table, &index, &mut out).unwrap();
    for (at, got) in out.iter().enumerate() {
        assert_eq!(*got, matrix.weight(at / 32, at % 32) as f32, "{at}");
    }
    // The kernels read powers apart from each other: the largest code of each group, times 127 / 127.
    let (x, six) = ([1.0f32; 32], vec![0x77; 255 * 16]);
    let table = RandomFloats { values: six, ..matrix }.layer(&[], 255);
    let wanted = run(InstructionSet::Portable, 1, &table, Rows::Floats(&x));
    for set in InstructionSet::all_here() {
        assert!(same_bits(&run(set, 1, &table, Rows::Floats(&x)), &wanted), "{set:?}");
    }
}

#[test]
fn microscaled_weights_take_a_quarter_of_a_bit_more_than_four() {
    let layer = RandomFloats::new(128, 256, 1).layer(&[], 128);
    assert_eq!(layer.nbytes(), 128 * 256 / 2 + 128 * 256 / 32 + 128 * 4);
}

/// Weights of one kind or another, and what they mean.
fn any_layer(kind: usize, outputs: usize, inputs: usize, seed: u64) -> (Linear, Vec<f32>) {
    let weight = numbers(inputs * outputs, seed);
    let narrow = narrow(&weight);
    match kind {
        0 => (Linear::dense(Rows::Floats(&weight), &[], inputs, outputs), weight),
        1 => (Linear::dense(Rows::Halves(&narrow), &[], inputs, outputs), widened(&narrow)),
        8 => {
            let matrix = RandomFloats::new(outputs, inputs, seed);
            let at = |at: usize| matrix.weight(at / inputs, at % inputs) as f32;
            (matrix.layer(&[], outputs), (0..inputs * outputs).map(at).collect())
        }
        _ => {
            let offset = [Offset::None, Offset::Zeros, Offset::Minimums][kind % 3];
            let matrix = Random::new(outputs, inputs, [4, 8][kind % 2], [16, 32][kind / 2 % 2], seed);
            let layer = Linear::packed(&matrix.quantized(offset), &[], inputs, outputs);
            let at = |at: usize| matrix.weight(at / inputs, at % inputs, offset) as f32;
            (layer, (0..inputs * outputs).map(at).collect())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn layers_of_several_kinds_are_their_parts_side_by_side(
        parts in proptest::collection::vec((0usize..9, 1usize..150), 1..5), rows in 1usize..20, groups in 1usize..4,
        narrow_x: bool, seed: u64, threads in 1usize..4,
    ) {
        let inputs = 32 * groups;
        let layers: Vec<Linear> = parts.iter().map(|&(kind, outputs)| any_layer(kind, outputs, inputs, seed).0).collect();
        let whole = Linear::stacked(layers.iter().cloned());
        prop_assert_eq!(whole.nbytes(), layers.iter().map(Linear::nbytes).sum::<usize>());
        let x = numbers(rows * inputs, seed ^ 1);
        let x16 = narrow(&x);
        let taken = if narrow_x { Rows::Halves(&x16) } else { Rows::Floats(&x) };
        for set in InstructionSet::all_here() {
            let out = run(set, threads, &whole, taken);
            let mut first = 0;
            for layer in &layers {
                let alone = run(set, 1, layer, taken);
                for row in 0..rows {
                    let beside = &out[row * whole.outputs + first..][..layer.outputs];
                    prop_assert!(same_bits(&alone[row * layer.outputs..][..layer.outputs], beside), "{set:?}");
                }
                first += layer.outputs;
            }
        }
    }

    #[test]
    fn what_is_looked_up_is_the_weights(
        parts in proptest::collection::vec((0usize..9, 1usize..150), 1..4), groups in 1usize..4, seed: u64,
        asked in proptest::collection::vec(0usize..1 << 16, 0..40), threads in 1usize..4,
    ) {
        let inputs = 32 * groups;
        let layers = parts.iter().map(|&(kind, outputs)| any_layer(kind, outputs, inputs, seed));
        let (layers, meant): (Vec<Linear>, Vec<Vec<f32>>) = layers.unzip();
        let (table, meant) = (Linear::stacked(layers), meant.concat());
        let index: Vec<i32> = asked.iter().map(|at| (at % table.outputs) as i32).collect();
        let mut out = vec![f32::NAN; index.len() * inputs];
        prop_assert_eq!(gather(&Threads::new(threads).unwrap(), &table, &index, &mut out), Ok(()));
        for (&at, row) in index.iter().zip(out.chunks(inputs)) {
            for (got, meant) in row.iter().zip(&meant[at as usize * inputs..]) {
                prop_assert!((got - meant).abs() < 1e-5, "{got} {meant}");
            }
        }
    }
}

#[test]
fn what_no_table_has_cannot_be_looked_up() {
    let (table, weight) = any_layer(1, 70, 7, 3);
    let threads = Threads::new(1).unwrap();
    let mut out = [bf16::ZERO; 14];
    assert_eq!(gather(&threads, &table, &[69, 64], &mut out), Ok(()));
    assert_eq!(widened(&out), [&weight[69 * 7..], &weight[64 * 7..65 * 7]].concat());
    assert_eq!(gather(&threads, &table, &[0, 70], &mut out), Err(70));
    assert_eq!(gather(&threads, &table, &[-1, 0], &mut out), Err(-1));
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
