//! The drafts that a step may have: for each row its tokens' *gains*, the probability that a token and all before it are
//! accepted.

use super::acceptance::{Acceptance, Personal};
use super::draft::{Segment, Segments};
use super::source::Source;

/// How many draft tokens a row gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Length {
    /// Number of tokens to take of those that the host proposed, from the first on.
    pub host: u16,
    /// Number of further tokens from the device's draft model.
    pub device: u16,
}

/// The drafts that a row may have: its part of the gains is `forced`, the rest of `host`, then `device`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    pub first: usize,
    pub forced: usize,
    pub host: usize,
    pub device: usize,
}

/// The drafts that all rows may have, and the gain of each token.
#[derive(Default)]
pub(super) struct Offers {
    pub rows: Vec<Offer>,
    pub gains: Vec<f32>,
}

impl Offers {
    pub fn clear(&mut self) {
        self.rows.clear();
        self.gains.clear();
    }

    /// Adds a row: the acceptance probabilities of the host's tokens, the first `forced` of which are forced, and of
    /// those that the device would draft after the forced ones.
    pub fn push(
        &mut self,
        host: impl Iterator<Item = f32>,
        forced: usize,
        device: impl Iterator<Item = f32>,
    ) {
        let first = self.gains.len();
        let product = |gain: &mut f32, probability: f32| {
            *gain *= probability;
            Some(*gain)
        };
        self.gains.extend(host.scan(1.0, product));
        let host = self.gains.len() - first;
        let forced = forced.min(host);
        let before = if forced > 0 { self.gains[first + forced - 1] } else { 1.0 };
        self.gains.extend(device.scan(before, product));
        let device = self.gains.len() - first - host;
        self.rows.push(Offer { first, forced, host, device });
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The most iterations that the draft model could be asked for.
    pub fn iterations(&self) -> usize {
        self.rows.iter().map(|row| row.device).max().unwrap_or(0)
    }

    /// Whether a row takes the device's draft of `iterations` tokens rather than the host's, and the gains of the
    /// tokens in the order in which they would be sent.
    pub fn best(&self, row: Offer, iterations: usize) -> (bool, impl Iterator<Item = f32> + '_) {
        let gains = &self.gains[row.first..row.first + row.host + row.device];
        let (forced, others) = (&gains[..row.forced], &gains[row.forced..row.host]);
        let drafted = &gains[row.host..row.host + row.device.min(iterations)];
        let on_device = drafted.iter().sum::<f32>() > others.iter().sum::<f32>();
        let rest = if on_device { drafted } else { others };
        (on_device, forced.iter().chain(rest).copied())
    }

    /// Everything that is offered, the device's draft only where the host has nothing but forced tokens.
    pub fn everything(&self, lengths: &mut Vec<Length>) {
        lengths.extend(self.rows.iter().map(|row| Length {
            host: row.host as u16,
            device: if row.host > row.forced { 0 } else { row.device as u16 },
        }));
    }
}

/// Adds a row to the offers.
pub(super) fn offer(
    offers: &mut Offers,
    acceptance: &Acceptance,
    personal: &Personal,
    segments: &Segments,
    device: usize,
    max_draft: usize,
) {
    let forced = segments.forced();
    let device = device.min(max_draft.saturating_sub(forced));
    let host = segments.positions().map(|(segment, at)| acceptance.probability(personal, segment, at));
    let model = Segment { source: Source::DraftModel, count: 0, class: 0 };
    let drafted = (0..device).map(|at| acceptance.probability(personal, model, at));
    offers.push(host, forced, drafted);
}
