//! Adapters: requests whose rows a low-rank adapter changes, by the adapter's digest.
//!
//! ```text
//!   begin     the digest separates the request's cached prefixes from all others'
//!   prepare ──► loaded: its slot is known ──────────────────────────► start
//!           └─► wanted ──► the runner loads it ──► settle: slot, or why not ──► start, or the end
//!   write     slot and tokens of each row that has an adapter
//! ```
//!
//! An adapter is its digest; the names that clients know are no concern of the engine. One that a request uses keeps its
//! slot until the request has left. O(1) a row.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::per_request::PerRequest;
use super::row_feature::{Registration, RowFeature, Start, Terms};
use crate::step::buffers::{StepBuffers, StepHeader};
use crate::step::rows::StepRow;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::{Error, Result};
use pyengine_messages::{Extension, ExtensionKind, FinishReason, Submit};
use serde::{Deserialize, Serialize};

/// Asks for the tokens of the model with an adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AdapterExtension {
    /// The SHA-256 of the adapter, 32 bytes.
    #[serde(with = "serde_bytes")]
    pub digest: Vec<u8>,
    /// The folder that it is loaded from, where it is not loaded already.
    pub folder: String,
}

impl Extension for AdapterExtension {
    const TAG: &'static str = "adapter";
}

pub(super) const FEATURE: Registration = Registration {
    takes: &[ExtensionKind::of::<AdapterExtension>()],
    gives: &[],
    make: |_, _| Box::new(Adapters::default()),
};

/// The SHA-256 of an adapter.
pub type Digest = [u8; 32];

/// A request with an adapter.
struct Adapted {
    digest: Digest,
    folder: String,
    /// Where the adapter is, or why it could not be loaded; `None` until that is known.
    slot: Option<std::result::Result<u32, String>>,
}

/// An adapter that the runner has.
#[derive(Clone, Copy)]
struct Loaded {
    slot: u32,
    /// The number of the request that was begun last with it.
    used: u64,
}

/// The adapters of all requests.
#[derive(Default)]
pub struct Adapters {
    loaded: FxHashMap<Digest, Loaded>,
    /// Requests so far.
    begun: u64,
    /// How many requests have each of the adapters that some request has.
    users: FxHashMap<Digest, usize>,
    requests: PerRequest<Adapted>,
    /// Requests that wait for their adapter, in their order.
    waiting: Vec<RequestId>,
    wanted: Vec<(Digest, String)>,
    prepared: Vec<RequestId>,
    /// Rows of the step that is written.
    rows: usize,
}

impl Adapters {
    /// The adapters, with their folders, that requests have begun to wait for since the last call.
    pub fn take_wanted(&mut self) -> Vec<(Digest, String)> {
        std::mem::take(&mut self.wanted)
    }

    /// The loaded adapters that no request has, the least recently used first.
    pub fn idle(&self) -> Vec<Digest> {
        let idle = self.loaded.iter().filter(|(digest, _)| !self.users.contains_key(*digest));
        let mut idle: Vec<(u64, Digest)> = idle.map(|(digest, loaded)| (loaded.used, *digest)).collect();
        idle.sort_unstable();
        idle.into_iter().map(|(_, digest)| digest).collect()
    }

    /// An adapter is loaded into a slot, or cannot be: its requests go on, or end with that error.
    pub fn settle(&mut self, digest: &[u8], slot: std::result::Result<u32, String>) -> Result<()> {
        let digest = read_digest(digest)?;
        if let Ok(slot) = slot {
            self.loaded.insert(digest, Loaded { slot, used: self.begun });
        }
        let Self { waiting, requests, prepared, .. } = self;
        waiting.retain(|id| {
            let Some(request) = requests.get_mut(*id).filter(|request| request.digest == digest) else {
                return true;
            };
            request.slot = Some(slot.clone());
            prepared.push(*id);
            false
        });
        Ok(())
    }

    /// An adapter's slot is given to another: `InvalidArgument` while requests have it.
    pub fn forget(&mut self, digest: &[u8]) -> Result<()> {
        let digest = read_digest(digest)?;
        if self.users.contains_key(&digest) {
            return Err(Error::InvalidArgument("requests have this adapter".into()));
        }
        self.loaded.remove(&digest);
        Ok(())
    }
}

impl RowFeature for Adapters {
    fn begin(&mut self, id: RequestId, submit: &Submit, _tokens: &[u32], terms: &mut Terms) -> Result<bool> {
        let Some(AdapterExtension { digest, folder }) = submit.extensions.get()? else { return Ok(false) };
        let digest = read_digest(&digest)?;
        terms.prepares = true;
        terms.salt ^= u64::from_le_bytes(*digest.first_chunk().expect("32 bytes"));
        *self.users.entry(digest).or_default() += 1;
        self.begun += 1;
        if let Some(loaded) = self.loaded.get_mut(&digest) {
            loaded.used = self.begun;
        }
        self.requests.insert(id, Adapted { digest, folder, slot: None });
        Ok(true)
    }

    /// Asks for the adapter; true if it is loaded.
    fn prepare(&mut self, id: RequestId) -> bool {
        let Some(request) = self.requests.get_mut(id) else { return true };
        request.slot = self.loaded.get(&request.digest).map(|loaded| Ok(loaded.slot));
        if request.slot.is_none() {
            self.waiting.push(id);
            if self.wanted.iter().all(|(digest, _)| *digest != request.digest) {
                self.wanted.push((request.digest, request.folder.clone()));
            }
        }
        request.slot.is_some()
    }

    fn prepared(&mut self, ids: &mut Vec<RequestId>) {
        ids.append(&mut self.prepared);
    }

    fn start(&mut self, id: RequestId, _generated: &[u32], _left: u32) -> Start {
        match self.requests.get(id).and_then(|request| request.slot.as_ref()) {
            Some(Err(why)) => Start { notices: vec![why.clone()], end: Some(FinishReason::Error) },
            _ => Start::default(),
        }
    }

    fn begin_step(&mut self) {
        self.rows = 0;
    }

    fn write(&mut self, row: &StepRow<'_>, out: &mut StepBuffers<'_>) -> Option<Range<usize>> {
        let Some(Ok(slot)) = self.requests.get(row.request)?.slot else { return None };
        out.adapter_slot[self.rows] = slot as i32;
        out.adapter_first[self.rows] = row.tokens.start as i32;
        out.adapter_count[self.rows] = row.tokens.len() as i32;
        self.rows += 1;
        None
    }

    fn end_step(&mut self, header: &mut StepHeader) {
        header.num_adapted_rows = self.rows as i64;
    }

    fn leave(&mut self, id: RequestId) {
        let Some(Adapted { digest, .. }) = self.requests.remove(id) else { return };
        self.waiting.retain(|waiting| *waiting != id);
        self.prepared.retain(|prepared| *prepared != id);
        if let Some(users) = self.users.get_mut(&digest) {
            *users -= 1;
            if *users == 0 {
                self.users.remove(&digest);
            }
        }
    }

    fn stats(&self, out: &mut Vec<(String, u64)>) {
        out.push(("adapters_loaded".into(), self.loaded.len() as u64));
    }
}

fn read_digest(bytes: &[u8]) -> Result<Digest> {
    bytes.try_into().map_err(|_| Error::InvalidArgument("an adapter's digest has 32 bytes".into()))
}
