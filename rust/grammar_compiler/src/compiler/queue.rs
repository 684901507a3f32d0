//! The descriptions that wait for a thread, and which is next: of the tenant with the fewest under way, the shortest.
//!
//! A tenant has at most its share of the threads, whatever it asks for, and the others find one free. The length of a
//! description says little about its time, but what people write is short. O(waiting).

use std::sync::Arc;

/// The descriptions that wait.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Vec<Waiting>,
}

/// A description that waits for a thread.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub job: u64,
    /// The tenant of the request that came with it first.
    pub tenant: u64,
    pub content: Arc<[u8]>,
}

impl Queue {
    pub fn push(&mut self, waiting: Waiting) {
        self.waiting.push(waiting);
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many are a tenant's.
    pub fn of(&self, tenant: u64) -> usize {
        self.waiting.iter().filter(|waiting| waiting.tenant == tenant).count()
    }

    /// Takes the next one, where a tenant has `running` under way and `share` may be.
    pub fn take(&mut self, share: usize, running: impl Fn(u64) -> usize) -> Option<Waiting> {
        let ready =
            self.waiting.iter().enumerate().map(|(at, waiting)| (running(waiting.tenant), waiting, at));
        let next = ready
            .filter(|(running, ..)| *running < share)
            .min_by_key(|(running, waiting, _)| (*running, waiting.content.len(), waiting.job))?;
        let at = next.2;
        Some(self.waiting.remove(at))
    }

    /// Takes those out that are no longer to wait.
    pub fn extract(&mut self, leaves: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let (out, left) = std::mem::take(&mut self.waiting).into_iter().partition(leaves);
        self.waiting = left;
        out
    }

    pub fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_of_the_tenant_with_least_is_next() {
        let mut queue = Queue::default();
        for (job, tenant, length) in [(1, 7, 50), (2, 7, 5), (3, 8, 90), (4, 8, 90), (5, 9, 1)] {
            queue.push(Waiting { job, tenant, content: Arc::from(vec![0; length]) });
        }
        let mut running = vec![9, 9];
        let mut order = Vec::new();
        while let Some(next) = queue.take(2, |tenant| running.iter().filter(|own| **own == tenant).count()) {
            running.push(next.tenant);
            order.push(next.job);
        }
        assert_eq!(order, [2, 3, 1, 4], "tenant 9 has its share");
        assert_eq!((queue.len(), queue.of(9), queue.of(8)), (1, 1, 0));
        assert_eq!(queue.extract(|waiting| waiting.job == 5).len(), 1);
    }
}
