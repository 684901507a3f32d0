//! XTC, exclude top choices: now and then the likely tokens make room for the least likely of them (P. E. Weidmann, 2024).
//! O(n).
//!
//! Whether it happens is drawn with a word of the position that no token has ([`Stream::common_word`]), so that a draft is
//! sampled under the same chance. Probabilities are added up as integers ([`Scale::mass`]).

use super::order::{Candidate, Cut, Row};
use super::temperature::Scale;
use crate::random::Stream;

/// Whether the likely tokens of a position are dropped: with this probability.
fn happens(probability: f32, stream: Stream) -> bool {
    f64::from(stream.common_word()) < f64::from(probability) * 4_294_967_296.0
}

/// Where the dice say so and at least two tokens of those kept so far, with a weight of at least `least`, have a
/// probability of `threshold` or more among them: drops all of these but the last in order.
///
/// The best may be dropped; `scale` stays that of the row as it was.
pub fn exclude(row: &mut Row, probability: f32, threshold: f32, scale: Scale, least: f32, stream: Stream) {
    let possible = probability > 0.0 && threshold <= 0.5; // false for NaN
    if !possible || !happens(probability, stream) {
        return;
    }
    let mut logits = scale.left(row, least);
    let total: u64 = logits.iter().map(|&logit| u64::from(scale.mass(logit))).sum();
    let wanted = ((f64::from(threshold) * total as f64).ceil() as u64).max(1);
    let likely = (0..).zip(&logits).filter(|(_, logit)| u64::from(scale.mass(**logit)) >= wanted);
    let Some(last) = likely.map(|(token, &logit)| Candidate::new(logit, token)).max() else { return };
    let until = Cut::after(last);
    for (token, logit) in (0..).zip(&mut logits) {
        if token != last.token() && until.keeps(*logit, token) {
            *logit = f32::NEG_INFINITY;
        }
    }
    row.load(&logits, None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::min_p::least_weight;

    fn kept(probabilities: &[f32], threshold: f32, best: usize) -> Vec<usize> {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln()).collect();
        let mut row = Row::new();
        row.load(&logits, None);
        let scale = Scale::new(&mut row, 1.0);
        row.keep_first(best);
        exclude(&mut row, 1.0, threshold, scale, least_weight(0.0), Stream::new(1, 2));
        let left = scale.left(&row, least_weight(0.0));
        (0..logits.len()).filter(|&token| left[token] > f32::NEG_INFINITY).collect()
    }

    #[test]
    fn the_last_of_the_likely_stays() {
        let probabilities = [0.1, 0.4, 0.3, 0.15, 0.05];
        assert_eq!(kept(&probabilities, 0.12, 5), [0, 3, 4]);
        assert_eq!(kept(&probabilities, 0.35, 5), [0, 1, 2, 3, 4], "one alone is not dropped");
        assert_eq!(kept(&probabilities, 0.45, 5), [0, 1, 2, 3, 4], "none is likely");
        assert_eq!(
            kept(&probabilities, 0.45, 2),
            [1, 2],
            "what is left has more of the probability: 4 of 7, 3 of 7"
        );
        assert_eq!(kept(&probabilities, 0.42, 2), [2]);
        assert_eq!(kept(&[0.25; 4], 0.25, 4), [3], "of equals, too");
        assert_eq!(kept(&probabilities, 0.0, 5), [4]);
        assert_eq!(kept(&probabilities, f32::NAN, 5), [0, 1, 2, 3, 4]);
        assert_eq!(kept(&probabilities, 0.6, 5), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn it_happens_as_often_as_it_should() {
        let count = |p| (0..10_000).filter(|&at| happens(p, Stream::new(7, at))).count();
        assert_eq!((count(0.0), count(1.0)), (0, 10_000));
        assert!((2_300..2_700).contains(&count(0.25)), "{}", count(0.25));
    }
}
