//! The tenants' virtual time: the tokens that each was served.

use rustc_hash::FxHashMap;

use crate::step::sequence_table::TenantId;

/// Idle tenants whose served tokens are remembered.
pub(super) const MAX_IDLE_TENANTS: usize = 1024;

pub(super) struct Tenant {
    key: u64,
    served: u64,
    requests: usize,
}

/// Tokens served to each tenant: the virtual time that fair share goes by.
#[derive(Default)]
pub struct Tenants {
    pub(super) slots: Vec<Tenant>,
    free: Vec<TenantId>,
    pub(super) by_key: FxHashMap<u64, TenantId>,
    idle: usize,
    // Virtual time of the tenant served last.
    clock: u64,
}

impl Tenants {
    /// The tenant of a new request.
    pub fn enter(&mut self, key: u64) -> TenantId {
        let id = *self.by_key.entry(key).or_insert_with(|| {
            let tenant = Tenant { key, served: 0, requests: 0 };
            self.idle += 1;
            if let Some(id) = self.free.pop() {
                self.slots[id as usize] = tenant;
                return id;
            }
            self.slots.push(tenant);
            self.slots.len() as TenantId - 1
        });
        let tenant = &mut self.slots[id as usize];
        self.idle -= usize::from(tenant.requests == 0);
        tenant.requests += 1;
        id
    }

    /// A request of the tenant has ended. Idle tenants are forgotten when their debt is paid or they are many.
    pub fn leave(&mut self, id: TenantId) {
        let tenant = &mut self.slots[id as usize];
        tenant.requests -= 1;
        if tenant.requests > 0 {
            return;
        }
        self.idle += 1;
        if self.idle == self.by_key.len() {
            *self = Self::default();
        } else if tenant.served <= self.clock {
            self.forget(id);
        } else if self.idle > MAX_IDLE_TENANTS {
            for id in 0..self.slots.len() as TenantId {
                let tenant = &self.slots[id as usize];
                if tenant.requests == 0 && self.by_key.get(&tenant.key) == Some(&id) {
                    self.forget(id);
                }
            }
        }
    }

    fn forget(&mut self, id: TenantId) {
        self.by_key.remove(&self.slots[id as usize].key);
        self.free.push(id);
        self.idle -= 1;
    }

    /// The tenant comes to wait: it has no credit from before. Returns its virtual time.
    pub(super) fn begin(&mut self, id: TenantId) -> u64 {
        let tenant = &mut self.slots[id as usize];
        tenant.served = tenant.served.max(self.clock);
        tenant.served
    }

    /// The tenant's request was chosen; its `prompt` tokens are charged at once, so that it does not win every
    /// place that is free in this step.
    pub fn admit(&mut self, id: TenantId, prompt: u32) {
        let tenant = &mut self.slots[id as usize];
        self.clock = self.clock.max(tenant.served);
        tenant.served += u64::from(prompt);
    }

    /// The tenant was served `tokens` more.
    pub fn charge(&mut self, id: TenantId, tokens: u64) {
        self.slots[id as usize].served += tokens;
    }

    pub(super) fn served(&self, id: TenantId) -> u64 {
        self.slots[id as usize].served
    }
}
