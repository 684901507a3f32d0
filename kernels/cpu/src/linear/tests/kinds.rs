//! Layers and tables of several kinds of weights.

use super::microscaled::RandomFloats;
use super::packed::{Offset, Random};
use super::*;

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
