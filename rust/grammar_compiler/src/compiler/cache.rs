//! Verdicts by the content of their descriptions, bounded in bytes, and more tightly those that were not used lately; the
//! one unused for longest goes first. Grammars grow with use, by their automata's states, and are measured again.
//!
//! ```text
//!  entries   description ─► verdict, bytes, when it was used
//!  order     when it was used ─► description      (oldest first)
//! ```
//!
//! A look-up is O(description) to hash and compare; the rest O(log entries), and O(entries) once a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use pyengine_grammar::Verdict;

/// A verdict that was not used for so long is idle.
pub(crate) const IDLE_AFTER: Duration = Duration::from_secs(3);
/// Idle verdicts may take this part of the whole.
const IDLE_SHARE: usize = 16;
/// All verdicts are measured again after this time.
const MEASURED_FOR: Duration = Duration::from_secs(1);
/// About what an entry takes beside description and grammar.
const OVERHEAD: usize = 256;

pub(crate) struct Cache {
    entries: HashMap<Arc<[u8]>, Entry>,
    order: BTreeMap<u64, Arc<[u8]>>,
    clock: u64,
    bytes: usize,
    limit: usize,
    measured_at: Option<Instant>,
}

struct Entry {
    verdict: Verdict,
    bytes: usize,
    /// What the verdict held when it was made.
    held: usize,
    used: u64,
    used_at: Instant,
    until: Option<Instant>,
}

impl Cache {
    pub(crate) fn new(limit: usize) -> Self {
        let (entries, order) = (HashMap::new(), BTreeMap::new());
        Self { entries, order, clock: 0, bytes: 0, limit, measured_at: None }
    }

    pub(crate) fn get(&mut self, description: &[u8], now: Instant) -> Option<Verdict> {
        if self.entries.get(description)?.until.is_some_and(|until| until <= now) {
            let entry = self.entries.remove(description)?;
            self.order.remove(&entry.used);
            self.bytes -= entry.bytes;
            return None;
        }
        let entry = self.entries.get_mut(description)?;
        let key = self.order.remove(&entry.used).expect("every entry has its place in the order");
        self.clock += 1;
        (entry.used, entry.used_at) = (self.clock, now);
        self.order.insert(self.clock, key);
        let verdict = entry.verdict.clone();
        if self.measured_at.is_none_or(|at| at + MEASURED_FOR <= now) {
            self.measure(now);
            self.shrink();
        }
        Some(verdict)
    }

    pub(crate) fn insert(
        &mut self,
        description: Arc<[u8]>,
        verdict: Verdict,
        held: usize,
        now: Instant,
        until: Option<Instant>,
    ) {
        let bytes = size(&description, &verdict, held);
        if bytes > self.limit {
            return;
        }
        self.clock += 1;
        self.order.insert(self.clock, description.clone());
        self.bytes += bytes;
        let entry = Entry { verdict, bytes, held, used: self.clock, used_at: now, until };
        if let Some(old) = self.entries.insert(description, entry) {
            self.order.remove(&old.used);
            self.bytes -= old.bytes;
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes > self.limit
            && let Some((_, oldest)) = self.order.pop_first()
        {
            let entry = self.entries.remove(&oldest).expect("the order names entries only");
            self.bytes -= entry.bytes;
        }
    }

    fn measure(&mut self, now: Instant) {
        self.measured_at = Some(now);
        for (description, entry) in &mut self.entries {
            let bytes = size(description, &entry.verdict, entry.held);
            self.bytes = self.bytes - entry.bytes + bytes;
            entry.bytes = bytes;
        }
    }

    /// Drops idle verdicts, as far as they take more than their share. O(entries).
    pub(crate) fn shrink_idle(&mut self, now: Instant) {
        self.measure(now);
        let entries = &self.entries;
        let idle = |key: &Arc<[u8]>| Some(&entries[key]).filter(|entry| entry.used_at + IDLE_AFTER <= now);
        let mut bytes: usize = self.order.values().map_while(idle).map(|entry| entry.bytes).sum();
        while bytes > self.limit / IDLE_SHARE
            && let Some((_, oldest)) = self.order.pop_first()
        {
            let entry = self.entries.remove(&oldest).expect("the order names entries only");
            self.bytes -= entry.bytes;
            bytes -= entry.bytes;
        }
    }

    /// Whether idle verdicts could take more than their share.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes > self.limit / IDLE_SHARE
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn size(description: &[u8], verdict: &Verdict, held: usize) -> usize {
    let estimated = match verdict {
        Ok(compiled) => compiled.memory(),
        Err(refusal) => refusal.message.len(),
    };
    OVERHEAD + description.len() + estimated.max(held)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use pyengine_grammar::refusal;

    fn refused(message: &str) -> Verdict {
        Err(refusal(message))
    }

    #[test]
    fn a_verdict_for_a_time_ends() {
        let mut cache = Cache::new(10_000);
        let now = Instant::now();
        let later = now + std::time::Duration::from_secs(1);
        cache.insert(Arc::from(*b"a"), refused("slow"), 0, now, Some(later));
        assert!(cache.get(b"a", now).is_some());
        assert!(cache.get(b"a", later).is_none());
        assert_eq!((cache.len(), cache.bytes(), cache.order.len()), (0, 0, 0));
    }

    #[test]
    fn what_is_idle_has_a_share() {
        let mut cache = Cache::new(IDLE_SHARE * 3 * OVERHEAD);
        let now = Instant::now();
        let names = [b"a", b"b", b"c", b"d", b"e"];
        for name in names {
            cache.insert(Arc::from(*name), refused(""), 0, now, None);
        }
        cache.shrink_idle(now);
        assert!(cache.is_large() && cache.len() == 5);
        assert!(cache.get(b"a", now + IDLE_AFTER).is_some());
        cache.shrink_idle(now + IDLE_AFTER);
        assert_eq!((cache.len(), cache.is_large()), (3, true), "one is not idle");
        cache.shrink_idle(now + 2 * IDLE_AFTER);
        assert_eq!((cache.len(), cache.is_large(), cache.order.len()), (2, false, 2));
        assert!(cache.get(b"a", now).is_some(), "the last used stay");
    }

    proptest! {
        #[test]
        fn it_is_a_bounded_list_by_use(
            steps in prop::collection::vec((any::<bool>(), 0..6u8, 0..300usize), 0..60),
            limit in 300..1500usize,
        ) {
            let mut cache = Cache::new(limit);
            let mut model: Vec<(u8, usize)> = Vec::new();
            for (insert, name, length) in steps {
                let at = model.iter().position(|(known, _)| *known == name);
                if insert {
                    cache.insert(Arc::from([name]), refused(&"m".repeat(length)), 0, Instant::now(), None);
                    let bytes = OVERHEAD + 1 + length;
                    if bytes <= limit {
                        if let Some(at) = at {
                            model.remove(at);
                        }
                        model.push((name, bytes));
                    }
                    while model.iter().map(|(_, bytes)| bytes).sum::<usize>() > limit {
                        model.remove(0);
                    }
                } else {
                    let got = cache.get(&[name], Instant::now()).map(|verdict| verdict.err().unwrap().message.len());
                    prop_assert_eq!(got, at.map(|at| model[at].1 - OVERHEAD - 1));
                    if let Some(at) = at {
                        let entry = model.remove(at);
                        model.push(entry);
                    }
                }
                prop_assert_eq!(cache.len(), model.len());
                prop_assert_eq!(cache.bytes(), model.iter().map(|(_, bytes)| bytes).sum::<usize>());
                prop_assert_eq!(cache.order.len(), cache.entries.len());
            }
        }
    }
}
