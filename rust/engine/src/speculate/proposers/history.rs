//! Recent outputs, by tenant, in bounded memory.
//!
//! ```text
//!  close(remember) ──► pending ──ingest, a few tokens at a time──► tenant: newest ─full─► previous ─► evicted
//!                                                                          └ both are searched ┘  (freed in pieces)
//! ```
//!
//! A tenant has at most two automata: the newest, which grows up to half of the bound, and the previous one.
//! Beyond the bound over all tenants the one that was longest without a request loses its older automaton; beyond the
//! bound of tenants it is forgotten. So memory is O(tokens + tenants), both bounded.
//! Tenants share nothing. Nothing here takes long at once: adding is put off and done in pieces, and so is
//! freeing. O(1) on average a token, O(log tenants) an output.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::automaton::Automaton;

/// So many tenants are remembered: each takes memory beside its tokens.
const MOST_TENANTS: usize = 4096;
/// An automaton of fewer tokens is freed at once.
const SMALL: usize = 256;
/// Chunks of memory freed with each piece of other work.
const FREED: usize = 4;

/// An automaton with a name that no other has or had.
#[derive(Debug)]
pub(super) struct Generation {
    pub id: u64,
    pub automaton: Automaton,
}

#[derive(Debug)]
struct Tenant {
    newest: Generation,
    previous: Option<Generation>,
    /// When it last had a request: its key in `History::order`.
    stamp: u64,
}

#[derive(Debug)]
struct Pending {
    tenant: u64,
    tokens: Vec<u32>,
    done: usize,
    /// Where the beginning is.
    generation: u64,
}

/// The outputs of all tenants.
pub(in super::super) struct History {
    bound: usize,
    tenants: HashMap<u64, Tenant>,
    order: BTreeMap<u64, u64>,
    clock: u64,
    ids: u64,
    indexed: usize,
    pending: VecDeque<Pending>,
    waiting: usize,
    evicted: Vec<Automaton>,
}

impl History {
    /// At most `bound` tokens of all tenants together.
    pub fn new(bound: usize) -> Self {
        Self {
            bound,
            tenants: HashMap::new(),
            order: BTreeMap::new(),
            clock: 0,
            ids: 0,
            indexed: 0,
            pending: VecDeque::new(),
            waiting: 0,
            evicted: Vec::new(),
        }
    }

    /// The automata of a tenant, the newest first.
    pub(super) fn of(&self, tenant: u64) -> impl Iterator<Item = &Generation> {
        self.tenants
            .get(&tenant)
            .into_iter()
            .flat_map(|own| std::iter::once(&own.newest).chain(&own.previous))
    }

    /// Tokens that are held, those not yet indexed included.
    pub fn tokens(&self) -> usize {
        self.indexed + self.waiting
    }

    /// Bytes of memory. O(tenants).
    pub fn bytes(&self) -> usize {
        let generations =
            self.tenants.values().flat_map(|own| std::iter::once(&own.newest).chain(&own.previous));
        generations.map(|generation| generation.automaton.bytes()).sum::<usize>()
            + self.evicted.iter().map(Automaton::bytes).sum::<usize>()
            + self.waiting * size_of::<u32>()
    }

    /// The tenant has a request: others are forgotten before it.
    pub fn touch(&mut self, tenant: u64) {
        if let Some(own) = self.tenants.get_mut(&tenant) {
            self.order.remove(&own.stamp);
            self.clock += 1;
            own.stamp = self.clock;
            self.order.insert(own.stamp, tenant);
        }
    }

    /// Takes an output of a tenant; [`ingest`](Self::ingest) adds it.
    pub fn remember(&mut self, tenant: u64, output: &[u32]) {
        let output = &output[output.len().saturating_sub(self.bound / 2)..];
        if output.is_empty() {
            return;
        }
        while self.tokens() + output.len() > self.bound && self.make_room() {}
        self.waiting += output.len();
        self.pending.push_back(Pending { tenant, tokens: output.to_vec(), done: 0, generation: 0 });
    }

    /// Drops all outputs of a tenant, those that wait too. O(outputs that wait); memory is freed in pieces, as ever.
    pub fn forget(&mut self, tenant: u64) {
        if let Some(own) = self.tenants.remove(&tenant) {
            self.order.remove(&own.stamp);
            std::iter::once(own.newest).chain(own.previous).for_each(|gone| self.evict(gone));
        }
        self.pending.retain(|output| {
            let stays = output.tenant != tenant;
            self.waiting -= if stays { 0 } else { output.tokens.len() - output.done };
            stays
        });
    }

    /// Gives up an automaton of the tenant that was longest without a request, else an output that waits.
    fn make_room(&mut self) -> bool {
        if let Some((_, tenant)) = self.order.first_key_value().map(|(&stamp, &tenant)| (stamp, tenant)) {
            let own = self.tenants.get_mut(&tenant).expect("a tenant in order is there");
            let gone = if let Some(previous) = own.previous.take() {
                previous
            } else {
                let own = self.tenants.remove(&tenant).expect("just seen");
                self.order.remove(&own.stamp);
                own.newest
            };
            self.evict(gone);
            return true;
        }
        if let Some(output) = self.pending.pop_front() {
            self.waiting -= output.tokens.len() - output.done;
            return true;
        }
        false
    }

    fn evict(&mut self, gone: Generation) {
        self.indexed -= gone.automaton.tokens();
        if gone.automaton.tokens() >= SMALL {
            self.evicted.push(gone.automaton);
        }
    }

    /// Adds at most `budget` tokens of the outputs that wait, and frees a little.
    pub fn ingest(&mut self, mut budget: usize) {
        if let Some(gone) = self.evicted.last_mut()
            && !(0..FREED).all(|_| gone.drop_chunk())
        {
            self.evicted.pop();
        }
        while budget > 0 {
            let Some(mut output) = self.pending.pop_front() else { return };
            let count = budget.min(output.tokens.len() - output.done);
            let generation = self.newest(output.tenant, output.tokens.len() - output.done, output.generation);
            if generation.id != output.generation {
                // The beginning may be gone, with a generation that was dropped.
                output.generation = generation.id;
                generation.automaton.begin();
            }
            let piece = &output.tokens[output.done..output.done + count];
            piece.iter().for_each(|&token| generation.automaton.append(token));
            output.done += count;
            budget -= count;
            self.indexed += count;
            self.waiting -= count;
            if output.done < output.tokens.len() {
                self.pending.push_front(output);
            }
        }
    }

    /// The tenant's newest generation, with room for `more` tokens unless it is `begun` in.
    fn newest(&mut self, tenant: u64, more: usize, begun: u64) -> &mut Generation {
        // At most twice: a tenant has two automata.
        while self.tenants.len() >= MOST_TENANTS && !self.tenants.contains_key(&tenant) {
            self.make_room();
        }
        let (ids, clock) = (&mut self.ids, &mut self.clock);
        let mut fresh = || {
            *ids += 1;
            Generation { id: *ids, automaton: Automaton::default() }
        };
        let own = self.tenants.entry(tenant).or_insert_with(|| {
            *clock += 1;
            self.order.insert(*clock, tenant);
            Tenant { newest: fresh(), previous: None, stamp: *clock }
        });
        if own.newest.id != begun && own.newest.automaton.tokens() + more > self.bound / 2 {
            let full = std::mem::replace(&mut own.newest, fresh());
            if let Some(gone) = own.previous.replace(full) {
                self.indexed -= gone.automaton.tokens();
                self.evicted.push(gone.automaton);
            }
        }
        &mut own.newest
    }
}

#[cfg(test)]
mod tests {
    use super::super::automaton::Place;
    use super::*;
    use proptest::prelude::*;

    /// Length of the longest suffix of `text` that the tenant's outputs hold.
    fn known(history: &History, tenant: u64, text: &[u32]) -> u32 {
        let in_one = |generation: &Generation| {
            text.iter().fold(Place::default(), |at, &token| generation.automaton.advance(at, token)).length
        };
        history.of(tenant).map(in_one).max().unwrap_or(0)
    }

    #[test]
    fn an_output_is_added_in_pieces() {
        let mut history = History::new(100);
        history.remember(1, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(known(&history, 1, &[1, 2, 3]), 0);
        history.ingest(3);
        assert_eq!(known(&history, 1, &[1, 2, 3, 4]), 0, "4 is not known yet");
        assert_eq!(known(&history, 1, &[1, 2, 3]), 3);
        history.ingest(100);
        assert_eq!((known(&history, 1, &[1, 2, 3, 4, 5, 6]), history.tokens()), (6, 6));
    }

    #[test]
    fn the_older_half_goes() {
        let mut history = History::new(20);
        for start in [0, 10, 20, 30u32] {
            history.remember(1, &(start..start + 8).collect::<Vec<_>>());
            history.ingest(100);
        }
        assert!(history.tokens() <= 20);
        let found = [0, 10, 20, 30].map(|start| known(&history, 1, &[start, start + 1]));
        assert_eq!(found, [0, 0, 2, 2]);
    }

    #[test]
    fn the_tenant_away_for_longest_is_forgotten_first() {
        let mut history = History::new(30);
        for tenant in [1, 2, 3] {
            history.remember(tenant, &[tenant as u32; 9]);
            history.ingest(100);
        }
        history.touch(1);
        history.remember(4, &[4; 9]);
        history.ingest(100);
        let found = [1, 2, 3, 4].map(|tenant| known(&history, tenant, &[tenant as u32]));
        assert_eq!(found, [1, 0, 1, 1]);
    }

    #[test]
    fn what_is_to_be_forgotten_is_gone_at_once() {
        let mut history = History::new(10_000);
        for tenant in [1, 2] {
            history.remember(tenant, &[tenant as u32; 600]);
            history.ingest(700);
            // This waits, partly added.
            history.remember(tenant, &[10 + tenant as u32; 50]);
            history.ingest(20);
        }
        history.forget(1);
        history.forget(3);
        let found =
            [(1, 1), (1, 11), (2, 2), (2, 12)].map(|(tenant, token)| known(&history, tenant, &[token]));
        assert_eq!(found, [0, 0, 1, 1]);
        assert_eq!((history.tokens(), history.waiting, history.tenants.len()), (650, 30, 1));
        (0..1000).for_each(|_| history.ingest(1));
        assert!(history.evicted.is_empty());
        assert_eq!((history.tokens(), known(&history, 1, &[11])), (650, 0));
        history.remember(1, &[7; 5]);
        history.ingest(100);
        assert_eq!(known(&history, 1, &[7; 5]), 5, "it begins anew");
    }

    #[test]
    fn many_tenants_take_little() {
        let mut history = History::new(1 << 20);
        for tenant in 0..20_000 {
            history.remember(tenant, &[1, 2, 3, 4]);
            history.ingest(100);
        }
        assert_eq!((history.tenants.len(), history.order.len()), (MOST_TENANTS, MOST_TENANTS));
        assert!(history.evicted.is_empty());
        assert_eq!(known(&history, 0, &[1, 2]), 0, "the tenant that was away longest");
        assert_eq!(known(&history, 19_999, &[1, 2, 3, 4]), 4);
        assert!(history.bytes() <= MOST_TENANTS * 1500, "{}", history.bytes());
    }

    proptest! {
        /// The bound holds, tenants see only their own, and all that is held is found.
        #[test]
        fn bounded_and_apart(outputs in prop::collection::vec((0u64..4, 1usize..30, 0usize..40), 0..60),
                             bound in 0usize..120) {
            let mut history = History::new(bound);
            let mut last = None;
            for (turn, (tenant, length, budget)) in outputs.into_iter().enumerate() {
                // Tokens tell whose they are.
                let output: Vec<u32> =
                    (0..length).map(|at| (tenant as u32) << 20 | (turn * 7 + at % 5) as u32).collect();
                history.touch(tenant);
                history.remember(tenant, &output);
                history.ingest(budget);
                prop_assert!(history.tokens() <= bound);
                let held: usize = history.tenants.keys().flat_map(|&tenant| history.of(tenant))
                    .map(|generation| generation.automaton.tokens()).sum();
                prop_assert_eq!(held, history.indexed);
                prop_assert_eq!(history.order.len(), history.tenants.len());
                for other in (0..4).filter(|&other| other != tenant) {
                    prop_assert!(known(&history, other, &output) == 0);
                }
                last = Some((tenant, output));
            }
            history.ingest(usize::MAX);
            prop_assert!(history.tokens() <= bound && history.waiting == 0);
            if let Some((tenant, output)) = last {
                prop_assert_eq!(known(&history, tenant, &output) as usize, output.len().min(bound / 2));
            }
            (0..10_000).for_each(|_| history.ingest(1));
            prop_assert!(history.evicted.is_empty());
        }
    }
}
