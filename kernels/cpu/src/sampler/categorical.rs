//! A draw from the candidates by inverting the cumulative distribution. O(n).

use super::Candidate;

/// The first candidate at which the cumulative probability exceeds `u`, in \[0, 1).
///
/// # Panics
/// There is no candidate.
pub fn draw(candidates: &[Candidate], u: f64) -> u32 {
    let target = u * candidates.iter().map(|c| f64::from(c.weight)).sum::<f64>();
    let mut reached = 0.0;
    let mut last = candidates[0].token;
    for candidate in candidates.iter().filter(|candidate| candidate.weight > 0.0) {
        reached += f64::from(candidate.weight);
        last = candidate.token;
        if reached > target {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders() {
        let weights = [0.0, 1.0, 0.0, 3.0, 0.0];
        let candidates: Vec<Candidate> =
            (0..5).map(|token| Candidate { weight: weights[token], token: token as u32 }).collect();
        assert_eq!(draw(&candidates, 0.0), 1);
        assert_eq!(draw(&candidates, 0.2499), 1);
        assert_eq!(draw(&candidates, 0.25), 3);
        assert_eq!(draw(&candidates, 1.0 - f64::EPSILON / 2.0), 3);
    }
}
