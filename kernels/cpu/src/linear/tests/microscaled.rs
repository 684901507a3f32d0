//! Weights of 4-bit floats that share powers of two.

use super::*;

/// A matrix of random codes and exponents.
pub struct RandomFloats {
    values: Vec<u8>,
    exponents: Vec<u8>,
    inputs: usize,
}

impl RandomFloats {
    pub fn new(outputs: usize, inputs: usize, seed: u64) -> Self {
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

    pub fn layer(&self, bias: &[f32], outputs: usize) -> Linear {
        let from = Microscaled { values: &self.values, exponents: &self.exponents };
        Linear::microscaled(&from, bias, self.inputs, outputs)
    }

    /// The number that is meant, by the words of the specification.
    pub fn weight(&self, output: usize, input: usize) -> f64 {
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
