//! How likely a draft token is accepted, given that all before it were.
//!
//! ```text
//!  of the class ─► of the class at this position ─► × how this sequence compares with others
//! ```
//!
//! Rates are counts that forget: the last few hundred judgements of a class, the last few dozen of a sequence.
//! Where little has been judged the estimate leans on the next wider group. O(1) a judgement and a question.

use super::draft::Segment;
use super::source::{CLASSES, SOURCES, Source};

/// Positions in a segment whose rates are kept apart; the last stands for all beyond.
const POSITIONS: usize = 8;

/// Counts that forget.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    accepted: f32,
    judged: f32,
}

impl Rate {
    fn add(&mut self, accepted: f32, judged: f32, keep: f32) {
        self.accepted = self.accepted * keep + accepted;
        self.judged = self.judged * keep + judged;
    }

    /// The rate, if `belief` had been seen `weight` times before.
    fn leaning_on(self, belief: f32, weight: f32) -> f32 {
        (self.accepted + weight * belief) / (self.judged + weight)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct ClassRates {
    all: Rate,
    at: [Rate; POSITIONS],
}

/// How a sequence compares with the others: accepted tokens of a source against those expected.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Personal([Rate; SOURCES]);

/// Acceptance of all sequences.
#[derive(Default)]
pub(super) struct Acceptance {
    rates: [[ClassRates; CLASSES]; SOURCES],
}

impl Acceptance {
    fn common(&self, segment: Segment, position: usize) -> f32 {
        let rates = &self.rates[segment.source as usize][usize::from(segment.class)];
        let class = rates.all.leaning_on(segment.source.prior(segment.class), 4.0);
        rates.at[position.min(POSITIONS - 1)].leaning_on(class, 8.0)
    }

    /// The probability that the token at `position` of a segment is accepted if all before it are.
    pub fn probability(&self, personal: &Personal, segment: Segment, position: usize) -> f32 {
        let common = self.common(segment, position);
        (common * personal.0[segment.source as usize].leaning_on(1.0, 3.0)).clamp(0.0, 0.995)
    }

    /// A token at `position` of a segment, all before it accepted, was accepted or not.
    pub fn judge(&mut self, personal: &mut Personal, segment: Segment, position: usize, accepted: bool) {
        let expected = self.common(segment, position);
        let accepted = f32::from(u8::from(accepted));
        personal.0[segment.source as usize].add(accepted, expected, 0.95);
        let rates = &mut self.rates[segment.source as usize][usize::from(segment.class)];
        rates.all.add(accepted, 1.0, 0.995);
        rates.at[position.min(POSITIONS - 1)].add(accepted, 1.0, 0.99);
    }

    /// Believes a little less in what was learned of a source. One that can be judged only when it drafts would
    /// otherwise never get another chance.
    pub fn fade(&mut self, source: Source) {
        for class in &mut self.rates[source as usize] {
            class.all.add(0.0, 0.0, 0.9);
            class.at.iter_mut().for_each(|rate| rate.add(0.0, 0.0, 0.9));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: Segment = Segment { source: Source::Ngram, count: 4, class: 2 };

    #[test]
    fn what_is_judged_is_believed() {
        let (mut acceptance, mut personal) = (Acceptance::default(), Personal::default());
        for turn in 0..400 {
            acceptance.judge(&mut personal, SEGMENT, 0, turn % 4 > 0);
            acceptance.judge(&mut personal, SEGMENT, 1, turn % 4 == 0);
        }
        let of = |segment, position| acceptance.probability(&Personal::default(), segment, position);
        assert!((of(SEGMENT, 0) - 0.75).abs() < 0.06, "{}", of(SEGMENT, 0));
        assert!((of(SEGMENT, 1) - 0.25).abs() < 0.06, "{}", of(SEGMENT, 1));
        assert!((of(SEGMENT, 5) - 0.5).abs() < 0.06, "nothing known of the position: {}", of(SEGMENT, 5));
        let other = Segment { class: 0, ..SEGMENT };
        assert_eq!(of(other, 0), Source::Ngram.prior(0), "nothing known of the class");
    }

    #[test]
    fn a_sequence_is_soon_told_from_the_others() {
        let (mut acceptance, mut easy, mut hard) =
            (Acceptance::default(), Personal::default(), Personal::default());
        for _ in 0..200 {
            acceptance.judge(&mut easy, SEGMENT, 0, true);
            acceptance.judge(&mut hard, SEGMENT, 0, false);
        }
        assert!(acceptance.probability(&easy, SEGMENT, 0) > 0.85);
        assert!(acceptance.probability(&hard, SEGMENT, 0) < 0.12);
        let mut turned = easy;
        (0..20).for_each(|_| acceptance.judge(&mut turned, SEGMENT, 0, false));
        assert!(acceptance.probability(&turned, SEGMENT, 0) < 0.4, "within tens of tokens");
    }

    #[test]
    fn bad_luck_fades() {
        let (mut acceptance, mut personal) = (Acceptance::default(), Personal::default());
        let model = Segment { source: Source::DraftModel, count: 1, class: 0 };
        (0..200).for_each(|_| acceptance.judge(&mut personal, model, 0, false));
        let before = acceptance.probability(&Personal::default(), model, 0);
        (0..60).for_each(|_| acceptance.fade(Source::DraftModel));
        let after = acceptance.probability(&Personal::default(), model, 0);
        assert!(before < 0.1 && after > 0.6, "{before} {after}");
    }
}
