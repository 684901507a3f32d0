//! Which experts a token goes to, and with what weights.

/// How experts are chosen from a token's scores.
#[derive(Debug, Clone, Default)]
pub struct Router {
    /// Scores are sigmoids, each by itself, not a softmax over all (DeepSeek-AI, "DeepSeek-V3", 2024).
    pub sigmoid: bool,
    /// The weights of the chosen sum to 1.
    pub normalized: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// Multiplies each expert's weight; a number an expert, or none.
    pub scales: Vec<f32>,
    /// Is added to scores where experts are chosen, not where they are weighted; a number an expert, or none.
    pub bias: Vec<f32>,
    /// Experts that a token goes to.
    pub chosen: usize,
    /// Groups of experts, of which `chosen_groups` are looked at.
    pub groups: usize,
    /// A group is judged by the sum of so many of its best.
    pub group_best: usize,
    /// See `groups`.
    pub chosen_groups: usize,
}

impl Router {
    /// Fills `into` with the chosen experts of a token and their weights, in the order of the experts.
    ///
    /// `scores` are the logits of all experts, and are overwritten. O(experts * chosen). Of equal experts the first
    /// is chosen.
    pub fn choose(&self, scores: &mut [f32], into: &mut Vec<(usize, f32)>) {
        into.clear();
        if self.sigmoid {
            for score in scores.iter_mut() {
                *score = 1.0 / (1.0 + (-*score).exp());
            }
        } else {
            let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
            let sum: f32 = scores.iter().sum();
            scores.iter_mut().for_each(|score| *score /= sum);
        }
        let rank = |expert: usize| scores[expert] + self.bias.get(expert).copied().unwrap_or(0.0);
        let open = self.open_groups(scores.len(), &rank);
        let width = scores.len() / self.groups.max(1);
        for _ in 0..self.chosen.min(scores.len()) {
            let free = (0..scores.len()).filter(|&expert| {
                open.get(expert / width).copied().unwrap_or(true)
                    && into.iter().all(|&(taken, _)| taken != expert)
            });
            let best = free.fold(None, |best: Option<usize>, expert| match best {
                Some(best) if rank(best) >= rank(expert) => Some(best),
                _ => Some(expert),
            });
            let Some(best) = best else { break };
            into.push((best, scores[best]));
        }
        into.sort_unstable_by_key(|&(expert, _)| expert);
        let sum: f32 = into.iter().map(|&(_, weight)| weight).sum();
        let factor = if self.normalized { self.scale / (sum + 1e-20) } else { self.scale };
        for (expert, weight) in into {
            *weight *= self.scales.get(*expert).map_or(factor, |scale| scale * factor);
        }
    }

    /// Whether each group is looked at; empty where there is one group.
    fn open_groups(&self, experts: usize, rank: &impl Fn(usize) -> f32) -> Vec<bool> {
        if self.groups <= 1 {
            return Vec::new();
        }
        let width = experts / self.groups;
        let worth: Vec<f32> = (0..self.groups)
            .map(|group| {
                let mut ranks: Vec<f32> = (group * width..(group + 1) * width).map(rank).collect();
                ranks.sort_unstable_by(|a, b| b.total_cmp(a));
                ranks.iter().take(self.group_best).sum()
            })
            .collect();
        let better = |group: usize| {
            (0..self.groups)
                .filter(|&other| {
                    worth[other] > worth[group] || (worth[other] == worth[group] && other < group)
                })
                .count()
        };
        (0..self.groups).map(|group| better(group) < self.chosen_groups).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(router: &Router, logits: &[f32]) -> Vec<(usize, f32)> {
        let mut into = Vec::new();
        router.choose(&mut logits.to_vec(), &mut into);
        into
    }

    #[test]
    fn a_softmax_over_all_or_over_the_chosen() {
        let logits = [0.0f32, 2.0, -1.0, 1.0];
        let sum: f32 = logits.iter().map(|x| x.exp()).sum();
        let mut router = Router { chosen: 2, scale: 1.0, ..Router::default() };
        let all = chosen(&router, &logits);
        assert_eq!(all.iter().map(|&(expert, _)| expert).collect::<Vec<_>>(), [1, 3]);
        assert!((all[0].1 - 2f32.exp() / sum).abs() < 1e-6);
        router.normalized = true;
        let some = chosen(&router, &logits);
        assert!((some[0].1 + some[1].1 - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let router =
            Router { sigmoid: true, scale: 2.0, chosen: 1, bias: vec![0.0, 0.0, 9.0], ..Router::default() };
        let got = chosen(&router, &[3.0, 2.0, 0.0]);
        assert_eq!(got, [(2, 1.0)]);
    }

    #[test]
    fn groups_are_judged_by_their_best() {
        // The best expert is in the first group, the best two are in the second.
        for (group_best, expected) in [(1, [0, 1]), (2, [2, 3])] {
            let groups = Router { groups: 2, group_best, chosen_groups: 1, ..Router::default() };
            let router = Router { chosen: 2, scale: 1.0, sigmoid: true, ..groups };
            let got = chosen(&router, &[5.0, -9.0, 2.0, 2.0]);
            assert_eq!(got.iter().map(|&(expert, _)| expert).collect::<Vec<_>>(), expected);
        }
    }
}
