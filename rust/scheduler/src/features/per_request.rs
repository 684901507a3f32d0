//! The state that a feature keeps for the requests that have it.

use crate::step::sequence_table::RequestId;

/// A feature's state of the requests that have it, by request id; O(1).
pub(super) struct PerRequest<T> {
    slots: Vec<Option<T>>,
}

impl<T> Default for PerRequest<T> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<T> PerRequest<T> {
    pub fn insert(&mut self, id: RequestId, value: T) {
        let at = id as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.slots[at] = Some(value);
    }

    #[inline]
    pub fn get(&self, id: RequestId) -> Option<&T> {
        self.slots.get(id as usize)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    pub fn remove(&mut self, id: RequestId) -> Option<T> {
        self.slots.get_mut(id as usize)?.take()
    }
}
