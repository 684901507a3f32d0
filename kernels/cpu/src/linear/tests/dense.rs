//! Weights of float32 and bfloat16.

use super::*;

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
    let (rows, inputs, outputs) = (100, 1501, 330);
    let (weight, x) = (numbers(inputs * outputs, 3), narrow(&numbers(rows * inputs, 4)));
    let narrow = narrow(&weight);
    for stored in [Rows::Halves(&narrow), Rows::Floats(&weight)] {
        let layer = Linear::dense(stored, &[], inputs, outputs);
        let wanted = run(InstructionSet::best(), 1, &layer, Rows::Halves(&x));
        for set in InstructionSet::all_here().filter(|&set| fuses(set) || matches!(stored, Rows::Halves(_))) {
            assert!(same_bits(&run(set, 2, &layer, Rows::Halves(&x)), &wanted), "{set:?}");
            for row in [0, 49, 99] {
                let alone = run(set, 1, &layer, one_row(Rows::Halves(&x), row, inputs));
                assert!(same_bits(&alone, &wanted[row * outputs..][..outputs]), "{set:?}, row {row}");
            }
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
