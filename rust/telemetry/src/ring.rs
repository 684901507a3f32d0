//! The flight recorder's memory: a ring of the latest spans, which threads and processes write together.
//!
//! ```text
//!  │ Header │ slot 0 │ slot 1 │ ...        ticket t goes to slot t mod capacity
//!             state, start, duration | track | stage, step: four words
//!             state: 2t + 1 while ticket t is being written, 2t + 2 once it is there
//! ```
//!
//! A writer takes the next ticket and then its slot, by changing the slot's state from an even to an odd number; so
//! two writers that are a whole round apart never write the same slot at once. A slot that is still being written is
//! left alone, and the span is lost, as are those that were overwritten before they were read: both are counted. A
//! writer that is killed in the middle costs its slot, nothing else. No thread ever waits. O(1) a span, about twice the
//! time of reading the clock.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use super::stage::{Span, Stage, Track};
use pyengine_base::error::{Error, Result};
use pyengine_base::shared_memory::{self, Mapping};

/// "pyengfr" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"pyengfr\x02");
/// The most spans that a ring holds.
const MAX_CAPACITY: usize = 1 << 24;
/// Durations have 48 bits: three days.
const MAX_DURATION: u64 = (1 << 48) - 1;

#[repr(C, align(128))]
struct Padded<T>(T);

#[repr(C)]
pub(super) struct Header {
    magic: AtomicU64,
    capacity: AtomicU64,
    /// 1 where recording is switched off.
    pub off: AtomicU32,
    /// When the oldest step was launched whose time on the device is not recorded yet; 0 for none.
    pub in_flight_since: AtomicU64,
    /// Nanoseconds of spans of threads that are for all requests together, by stage.
    pub spent: [AtomicU64; Stage::ALL.len()],
    /// The next ticket.
    next: Padded<AtomicU64>,
}

#[repr(C, align(32))]
struct Slot {
    state: AtomicU64,
    start: AtomicU64,
    kind: AtomicU64,
    step: AtomicU64,
}

/// The state of a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Span(Span),
    /// Not written yet, or never.
    Missing,
    /// Overwritten.
    Gone,
}

pub(super) struct Ring {
    mapping: Mapping,
    capacity: u64,
}

impl Ring {
    /// A ring of `capacity` spans, rounded up to a power of two.
    pub(super) fn new(capacity: usize) -> Result<Self> {
        if capacity == 0 || capacity > MAX_CAPACITY {
            let problem = format!("capacity must be from 1 to {MAX_CAPACITY} spans, not {capacity}");
            return Err(Error::InvalidArgument(problem));
        }
        let capacity = capacity.next_power_of_two();
        let memory = shared_memory::create(c"pyengine-recorder", file_size(capacity))?;
        let ring = Self { mapping: Mapping::new(memory, file_size(capacity))?, capacity: capacity as u64 };
        ring.header().capacity.store(capacity as u64, Relaxed);
        ring.header().magic.store(MAGIC, Release);
        Ok(ring)
    }

    /// The ring of another process, by an inherited descriptor, which is duplicated.
    pub(super) fn attach(memory: BorrowedFd<'_>) -> Result<Self> {
        let refused = || Error::InvalidArgument("the descriptor is not the memory of a recorder".into());
        let (memory, size) = shared_memory::open(memory)?.ok_or_else(refused)?;
        if size < size_of::<Header>() {
            return Err(refused());
        }
        let mut ring = Self { mapping: Mapping::new(memory, size)?, capacity: 0 };
        let capacity = ring.header().capacity.load(Relaxed) as usize;
        let sound = capacity.is_power_of_two() && capacity <= MAX_CAPACITY && file_size(capacity) == size;
        if ring.header().magic.load(Acquire) != MAGIC || !sound {
            return Err(refused());
        }
        ring.capacity = capacity as u64;
        Ok(ring)
    }

    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.mapping.memory()
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a page-aligned header, made only of atomics, and lives as long as self.
        unsafe { self.mapping.base().cast::<Header>().as_ref() }
    }

    fn slot(&self, ticket: u64) -> &Slot {
        let at = (ticket & (self.capacity - 1)) as usize;
        // SAFETY: `capacity` slots, made only of atomics, follow the header, whose size is a multiple of their
        // alignment; the mapping lives as long as self.
        unsafe { self.mapping.base().add(size_of::<Header>()).cast::<Slot>().add(at).as_ref() }
    }

    /// The next ticket: as many spans were offered so far.
    pub(super) fn next(&self) -> u64 {
        self.header().next.0.load(Acquire)
    }

    #[inline]
    pub(super) fn write(&self, span: Span) {
        let ticket = self.header().next.0.fetch_add(1, Relaxed);
        let slot = self.slot(ticket);
        let state = slot.state.load(Relaxed);
        // Odd: another writer is still writing. Greater: a writer a round ahead was faster.
        let free = state.is_multiple_of(2) && state <= ticket * 2;
        if !free || slot.state.compare_exchange(state, ticket * 2 + 1, Acquire, Relaxed).is_err() {
            return;
        }
        // No word of the span is seen by a reader that does not see the odd state.
        fence(Release);
        let duration = span.end.saturating_sub(span.start).min(MAX_DURATION);
        slot.start.store(span.start, Relaxed);
        slot.kind.store(duration << 16 | (span.track as u64) << 8 | span.stage as u64, Relaxed);
        slot.step.store(span.step, Relaxed);
        slot.state.store(ticket * 2 + 2, Release);
    }

    /// The span of `ticket`.
    pub(super) fn look(&self, ticket: u64) -> Look {
        let slot = self.slot(ticket);
        let state = slot.state.load(Acquire);
        if state != ticket * 2 + 2 {
            return if state > ticket * 2 + 2 { Look::Gone } else { Look::Missing };
        }
        let (start, kind, step) =
            (slot.start.load(Relaxed), slot.kind.load(Relaxed), slot.step.load(Relaxed));
        fence(Acquire);
        if slot.state.load(Relaxed) != state {
            return Look::Gone;
        }
        match (Stage::from_number(kind as u8), Track::from_number((kind >> 8) as u8)) {
            (Some(stage), Some(track)) => {
                Look::Span(Span { stage, track, start, end: start.saturating_add(kind >> 16), step })
            }
            _ => Look::Gone,
        }
    }
}

fn file_size(capacity: usize) -> usize {
    size_of::<Header>() + capacity * size_of::<Slot>()
}

/// Reads the spans in the order of their tickets, each once. O(spans).
///
/// A ticket whose span is not there yet is waited for until the next but one read, and then given up: its writer has
/// died, or found its slot taken.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    at: u64,
    /// The ticket that was missing at the last read.
    missing: Option<u64>,
    /// Spans that were not read: overwritten, refused, or never finished.
    pub lost: u64,
}

impl Cursor {
    /// A cursor at the oldest span that is left (`from` 0), or at ticket `from`.
    pub(super) fn new(from: u64) -> Self {
        Self { at: from, ..Self::default() }
    }

    /// The ticket that is read next.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Gives every span that has come to `take`.
    pub(super) fn read(&mut self, ring: &Ring, mut take: impl FnMut(Span)) {
        let end = ring.next();
        let oldest = end.saturating_sub(ring.capacity());
        self.lost += oldest.saturating_sub(self.at);
        self.at = self.at.max(oldest);
        let gave_up = self.missing.take();
        while self.at < end {
            match ring.look(self.at) {
                Look::Span(span) => take(span),
                Look::Gone => self.lost += 1,
                Look::Missing if gave_up.is_some_and(|ticket| self.at <= ticket) => self.lost += 1,
                Look::Missing => {
                    // All that are missing now get the same time.
                    self.missing = Some(end - 1);
                    return;
                }
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn span(number: u64) -> Span {
        // Every word tells the number, so that a torn span is seen.
        Span {
            stage: Stage::from_number((number % 20) as u8).unwrap(),
            track: Track::Frontend,
            start: number * 3,
            end: number * 3 + number % 1000,
            step: number,
        }
    }

    fn read(ring: &Ring, cursor: &mut Cursor) -> Vec<Span> {
        let mut spans = Vec::new();
        cursor.read(ring, |span| spans.push(span));
        spans
    }

    #[test]
    fn spans_come_back_in_order_and_the_oldest_are_overwritten() {
        let ring = Ring::new(5).unwrap();
        assert_eq!(ring.capacity(), 8);
        let mut cursor = Cursor::new(0);
        (0..6).for_each(|number| ring.write(span(number)));
        assert_eq!(read(&ring, &mut cursor), (0..6).map(span).collect::<Vec<_>>());
        (6..30).for_each(|number| ring.write(span(number)));
        assert_eq!(read(&ring, &mut cursor), (22..30).map(span).collect::<Vec<_>>());
        assert_eq!((cursor.lost, read(&ring, &mut cursor).len()), (16, 0));
    }

    #[test]
    fn a_writer_that_died_costs_its_slot_and_holds_up_one_read() {
        let ring = Ring::new(4).unwrap();
        let mut cursor = Cursor::new(0);
        let dead = ring.header().next.0.fetch_add(1, Relaxed);
        ring.slot(dead).state.store(dead * 2 + 1, Relaxed);
        ring.write(span(1));
        assert_eq!(read(&ring, &mut cursor), []);
        ring.write(span(2));
        assert_eq!(read(&ring, &mut cursor), [span(1), span(2)]);
        assert_eq!(cursor.lost, 1);
        (3..9).for_each(|number| ring.write(span(number)));
        // Tickets 5 to 8; the dead slot, whose spans are refused, is that of tickets 4 and 8.
        assert_eq!(read(&ring, &mut cursor), (5..8).map(span).collect::<Vec<_>>());
    }

    #[test]
    fn a_peer_sees_the_same_spans_and_others_are_refused() {
        let ring = Ring::new(16).unwrap();
        let peer = Ring::attach(ring.memory()).unwrap();
        peer.write(span(7));
        assert_eq!(ring.look(0), Look::Span(span(7)));
        let other = std::fs::File::open("/dev/null").unwrap();
        assert!(Ring::attach(std::os::fd::AsFd::as_fd(&other)).is_err());
        let mailbox = pyengine_mailbox::Mailbox::new(1).unwrap();
        assert!(Ring::attach(mailbox.descriptors().0).is_err());
        assert!(Ring::new(0).is_err() && Ring::new(MAX_CAPACITY + 1).is_err());
    }

    #[test]
    fn many_writers_never_tear_a_span_and_every_ticket_is_accounted_for() {
        const EACH: u64 = 20_000;
        let ring = Ring::new(64).unwrap();
        let mut cursor = Cursor::new(0);
        let mut seen = 0;
        thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    let ring = &ring;
                    scope.spawn(move || (0..EACH).for_each(|n| ring.write(span(writer * EACH + n))))
                })
                .collect();
            let mut check = |found: Span| {
                assert_eq!(found, span(found.step));
                seen += 1;
            };
            while !writers.iter().all(|writer| writer.is_finished()) {
                cursor.read(&ring, &mut check);
            }
            (0..3).for_each(|_| cursor.read(&ring, &mut check));
        });
        assert_eq!(seen + cursor.lost, 4 * EACH);
        assert_eq!(ring.next(), 4 * EACH);
    }
}
