//! The lock-free ring: many writers, one reader, records of any length. Send and receive are O(length) for the
//! copy and O(1) for the rest, without a lock or a system call; a writer retries only when another one got on.
//!
//! ```text
//!            head (reader)                     tail (writers)
//!              ▼                                 ▼
//!  slots  │F₁│P₀│P₀│R₀│P₀│F₀│F₀│F₀│    one word a record, in order of reservation
//!              │  │  ╲   ╲
//!  data   ░░░░░│aa│bbbb│cc│ddddd│░░░   whole granules, in the same order
//!
//!  a slot   FREE(lap) ──writer──► RESERVED(writer, length) ──writer──► PUBLISHED(length) ──reader──► FREE(lap+1)
//!               └─────reader────► SEALED     └──────────────reader, if the writer is dead─────────────▲
//! ```
//!
//! A cursor (tail, head) is one word: the number of a record and the number of the granule where its data
//! begins. A record takes at least one granule and there is one slot per granule, so only room for data has to
//! be checked.
//!
//! **Sending.** A writer reads the tail (i, p), checks the room up to the head, and changes slot i by one
//! compare-and-swap from FREE to RESERVED. *That* is the reservation: writer and length become known in the same
//! instant, so there is no moment at which a killed writer leaves a gap of unknown size. Then the tail moves on
//! to (i+1, p+granules); another writer that finds slot i taken while the tail is still there moves the tail.
//! Then the writer copies its bytes and changes the slot to PUBLISHED.
//!
//! **Why a late writer does no harm.** FREE carries the lap (the upper bits of i), and i goes through every
//! number: slot i is FREE(lap of i) only from the time the reader frees it to the time record i is reserved. So
//! the swap succeeds only if i still is the tail. The tail itself moves by a swap from the whole (i, p). Both
//! could be fooled only by a writer that sleeps for exactly 2³² records.
//!
//! **Memory ordering.**
//! - Message bytes: the writer's PUBLISHED (a release) is read by the reader (an acquire): it sees the bytes.
//! - Reuse: the reader moves the head (a release) after it has used the bytes and freed the slot; a writer reads
//!   the head (an acquire) before it counts the room: its bytes land only where reading has ended, and of slots
//!   within the room it sees no older state than FREE. (The tail is read before the head. An old head makes the
//!   room look smaller, never larger; an old tail behind the head shows as more than full, and is read again.)
//! - The tail is past a record before the record is PUBLISHED, so the reader need not look at the tail; it moves
//!   it itself only when it skips a dead writer's record.
//! - PUBLISHED, and the reader's look before it sleeps, are sequentially consistent, for `wake`.
//!
//! **Closing.** A flag asks; the reader carries it out when it finds FREE at its head, by a swap to SEALED. Each
//! send either got its slot before (and is delivered) or finds the flag or the seal (and is refused).
//!
//! **Death.** A reader takes a RESERVED record whose writer has ended off the ring. A new reader may take the
//! place of a dead one: FREE keeps the size of the record it replaced, so a head that was not moved is moved.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::process;
use super::region::{GRANULE, Header, Region};
use pyengine_base::error::{Error, Result};

/// Where a record is: its number, and the granule its data begins at. Both wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) index: u32,
    pub(super) position: u32,
}

impl Cursor {
    fn unpack(word: u64) -> Self {
        Self { index: (word >> 32) as u32, position: word as u32 }
    }

    fn pack(self) -> u64 {
        u64::from(self.index) << 32 | u64::from(self.position)
    }

    fn after(self, granules: u32) -> Self {
        Self { index: self.index.wrapping_add(1), position: self.position.wrapping_add(granules) }
    }
}

/// The state of a record, as its slot spells it: two bits of state below two fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free { lap: u32, granules: u32 },
    Reserved { writer: u32, length: u32 },
    Published { length: u32 },
    Sealed,
}

impl Slot {
    fn unpack(word: u64) -> Self {
        let (high, low) = ((word >> 33) as u32, (word >> 2) as u32 & (u32::MAX >> 1));
        match word & 3 {
            0 => Self::Free { lap: high, granules: low },
            1 => Self::Reserved { writer: high, length: low },
            2 => Self::Published { length: low },
            _ => Self::Sealed,
        }
    }

    fn pack(self) -> u64 {
        let word = |high: u32, low: u32, state| u64::from(high) << 33 | u64::from(low) << 2 | state;
        match self {
            Self::Free { lap, granules } => word(lap, granules, 0),
            Self::Reserved { writer, length } => word(writer, length, 1),
            Self::Published { length } => word(0, length, 2),
            Self::Sealed => 3,
        }
    }
}

/// The state of the record at the reader's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing.
    Empty,
    /// A record that this process is still writing.
    InFlight(u32),
    /// A message.
    Message,
    /// The end: closed, and no message is left.
    End,
}

/// A ring in a region.
pub(super) struct Ring {
    region: Region,
    lap_shift: u32,
}

impl Ring {
    pub(super) fn new(region: Region) -> Self {
        let lap_shift = region.granules().trailing_zeros();
        Self { region, lap_shift }
    }

    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    pub(super) fn header(&self) -> &Header {
        self.region.header()
    }

    /// The longest message: half of the data, so that a long one need not wait for an empty ring.
    pub(super) fn limit(&self) -> usize {
        self.region.capacity() / 2
    }

    /// Granules that are taken. Exact while no thread sends or receives.
    pub(super) fn taken(&self) -> usize {
        let head = Cursor::unpack(self.header().head.0.load(Acquire));
        let tail = Cursor::unpack(self.header().tail.0.load(Acquire));
        (tail.position.wrapping_sub(head.position) as usize).min(self.region.granules())
    }

    fn lap(&self, index: u32) -> u32 {
        index >> self.lap_shift
    }

    /// Takes the next record for `length` bytes. The caller publishes it, soon.
    pub(super) fn reserve(&self, length: usize) -> Result<Cursor> {
        if length > self.limit() {
            return Err(Error::MessageTooLarge { length, limit: self.limit() });
        }
        let header = self.header();
        if header.closed.load(SeqCst) != 0 {
            return Err(Error::MailboxClosed);
        }
        loop {
            let tail = Cursor::unpack(header.tail.0.load(Acquire));
            let head = Cursor::unpack(header.head.0.load(Acquire));
            if self.try_reserve(tail, head, length as u32)? {
                return Ok(tail);
            }
        }
    }

    /// One attempt, with the cursors as they were read, tail first. False if another writer or the reader was
    /// faster, and so made progress.
    fn try_reserve(&self, tail: Cursor, head: Cursor, length: u32) -> Result<bool> {
        let needed = granules(length);
        let taken = tail.position.wrapping_sub(head.position) as usize;
        let Some(free) = self.region.granules().checked_sub(taken) else {
            return Ok(false); // The tail we saw is behind the head: it has moved since.
        };
        if free < needed as usize {
            return Err(Error::MailboxFull { needed: needed as usize * GRANULE, free: free * GRANULE });
        }
        // There is room, so slot `tail.index` has been freed since the lap before.
        let slot = self.region.slot(tail.index);
        let word = slot.load(Acquire);
        let (ahead, reserved) = match Slot::unpack(word) {
            Slot::Sealed => return Err(Error::MailboxClosed),
            Slot::Free { lap, .. } if lap != self.lap(tail.index) => return Ok(false), // The tail has moved since.
            Slot::Free { .. } => {
                let mine = Slot::Reserved { writer: process::own_id(), length }.pack();
                if slot.compare_exchange(word, mine, SeqCst, Relaxed).is_err() {
                    return Ok(false);
                }
                (needed, true)
            }
            // Its writer has not moved the tail yet. If the tail did move, this length is of a later lap perhaps,
            // and the swap below fails.
            Slot::Reserved { length, .. } | Slot::Published { length } => (granules(length), false),
        };
        let next = tail.after(ahead).pack();
        let _ = self.header().tail.0.compare_exchange(tail.pack(), next, SeqCst, Relaxed);
        Ok(reserved)
    }

    /// Writes `message` into the record that `reserve` gave for its length, and hands it to the reader.
    pub(super) fn publish(&self, place: Cursor, message: &[u8]) {
        let length = message.len();
        let data = self.region.data(place.position, length);
        // SAFETY: `reserve` gave these granules to this call alone: they lie between head and tail, the reader
        // touches them only once the slot is PUBLISHED, below, and no other record has them.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), data, length) };
        self.region.slot(place.index).store(Slot::Published { length: length as u32 }.pack(), SeqCst);
    }

    /// The state that a reader would find now.
    pub(super) fn peek(&self) -> Next {
        let head = Cursor::unpack(self.header().head.0.load(Acquire));
        match Slot::unpack(self.region.slot(head.index).load(SeqCst)) {
            Slot::Free { .. } if self.header().closed.load(SeqCst) == 0 => Next::Empty,
            Slot::Free { .. } | Slot::Sealed => Next::End,
            Slot::Reserved { writer, .. } => Next::InFlight(writer),
            Slot::Published { .. } => Next::Message,
        }
    }

    /// The process that reads, or 0 if none has yet.
    pub(super) fn reader(&self) -> u32 {
        (self.header().reader.0.load(Relaxed) >> 1) as u32
    }

    /// Makes this process the reader, if it is not.
    pub(super) fn claim(&self) -> Result<()> {
        if self.reader() == process::own_id() { Ok(()) } else { self.read().map(drop) }
    }

    /// Begins to receive. One thread of one process at a time.
    pub(super) fn read(&self) -> Result<Reading<'_>> {
        let mine = u64::from(process::own_id()) << 1;
        let reader = &self.header().reader.0;
        if let Err(seen) = reader.compare_exchange(mine, mine | 1, Acquire, Relaxed) {
            self.take_over(seen, mine)?;
        }
        let head = Cursor::unpack(self.header().head.0.load(Relaxed));
        Ok(Reading { ring: self, head, mine })
    }

    /// Becomes the reader if there is none or its process is dead.
    #[cold]
    fn take_over(&self, seen: u64, mine: u64) -> Result<()> {
        let busy = |reader: String| Err(Error::InvalidArgument(format!("mailbox is being read by {reader}")));
        let other = (seen >> 1) as u32;
        if u64::from(other) << 1 == mine {
            return busy("another thread".into());
        }
        if other != 0 && process::is_alive(other) {
            return busy(format!("process {other}"));
        }
        if self.header().reader.0.compare_exchange(seen, mine | 1, SeqCst, Relaxed).is_err() {
            return busy("another thread or process".into());
        }
        // It may have died after it freed its slot and before it moved the head.
        let head = Cursor::unpack(self.header().head.0.load(Acquire));
        if let Slot::Free { lap, granules } = Slot::unpack(self.region.slot(head.index).load(Acquire))
            && lap != self.lap(head.index)
        {
            self.header().head.0.store(head.after(granules).pack(), Release);
        }
        Ok(())
    }
}

/// The right to receive, until it is dropped.
pub(super) struct Reading<'a> {
    ring: &'a Ring,
    head: Cursor,
    mine: u64,
}

impl Reading<'_> {
    /// The number of the record at the head.
    pub(super) fn index(&self) -> u32 {
        self.head.index
    }

    /// Gives the next message to `take` and frees its room; None if there is none now. If `take` panics, the
    /// message stays.
    pub(super) fn next<T>(&mut self, take: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let slot = self.ring.region.slot(self.head.index);
        loop {
            let word = slot.load(Acquire);
            match Slot::unpack(word) {
                Slot::Published { length } => {
                    let data = self.ring.region.data(self.head.position, length as usize);
                    // SAFETY: the acquire above saw the writer's release, so the bytes are written, and no
                    // writer overwrites them before `free` below has moved the head.
                    let taken = take(unsafe { std::slice::from_raw_parts(data, length as usize) });
                    self.free(length);
                    return Ok(Some(taken));
                }
                Slot::Reserved { .. } => return Ok(None),
                Slot::Sealed => return Err(Error::MailboxClosed),
                Slot::Free { .. } => {
                    if self.ring.header().closed.load(SeqCst) == 0 {
                        return Ok(None);
                    }
                    // Fails if a writer was just in time; then there is a record to read.
                    if slot.compare_exchange(word, Slot::Sealed.pack(), SeqCst, Relaxed).is_ok() {
                        return Err(Error::MailboxClosed);
                    }
                }
            }
        }
    }

    /// Takes the record at the head off the ring if `writer` reserved it and did not publish it. Only for a
    /// writer that has ended.
    pub(super) fn skip(&mut self, writer: u32) {
        let found = Slot::unpack(self.ring.region.slot(self.head.index).load(Acquire));
        let Slot::Reserved { writer: found, length } = found else { return };
        if found != writer {
            return;
        }
        // It may have died before it moved the tail; the head must not get ahead of that.
        let next = self.head.after(granules(length));
        let _ = self.ring.header().tail.0.compare_exchange(self.head.pack(), next.pack(), SeqCst, Relaxed);
        self.free(length);
    }

    fn free(&mut self, length: u32) {
        let granules = granules(length);
        let slots = self.ring.region.granules() as u32;
        let lap = self.ring.lap(self.head.index.wrapping_add(slots));
        self.ring.region.slot(self.head.index).store(Slot::Free { lap, granules }.pack(), Relaxed);
        self.head = self.head.after(granules);
        self.ring.header().head.0.store(self.head.pack(), Release);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.ring.header().reader.0.store(self.mine, Release);
    }
}

/// Granules that a message of `length` bytes takes.
fn granules(length: u32) -> u32 {
    length.div_ceil(GRANULE as u32).max(1)
}

#[cfg(test)]
mod tests;
