//! The protocol step by step, also from states that threads reach only by chance: wrapped counters, old cursors, the dead.

use super::*;

fn small() -> Ring {
    Ring::new(Region::new(1).unwrap())
}

/// An empty ring whose next record is `index` at granule `position`.
fn ring_at(index: u32, position: u32) -> Ring {
    let ring = small();
    let slots = ring.region.granules() as u32;
    for next in (0..slots).map(|offset| index.wrapping_add(offset)) {
        ring.region.slot(next).store(Slot::Free { lap: ring.lap(next), granules: 0 }.pack(), Relaxed);
    }
    let cursor = Cursor { index, position }.pack();
    ring.header().tail.0.store(cursor, Relaxed);
    ring.header().head.0.store(cursor, Relaxed);
    ring
}

fn next(ring: &Ring) -> Option<Vec<u8>> {
    ring.read().unwrap().next(<[u8]>::to_vec).unwrap()
}

fn send(ring: &Ring, message: &[u8]) {
    ring.publish(ring.reserve(message.len()).unwrap(), message);
}

#[test]
fn slots_and_cursors_come_back_as_they_went() {
    let top = u32::MAX >> 1;
    for slot in [
        Slot::Free { lap: 0, granules: 0 },
        Slot::Free { lap: top, granules: top },
        Slot::Reserved { writer: 1 << 22, length: top },
        Slot::Published { length: 0 },
        Slot::Sealed,
    ] {
        assert_eq!(Slot::unpack(slot.pack()), slot);
    }
    assert_eq!(Slot::Free { lap: 0, granules: 0 }.pack(), 0, "fresh memory is a free ring");
    let last = Cursor { index: u32::MAX, position: u32::MAX };
    assert_eq!(Cursor::unpack(last.pack()), last);
    assert_eq!(last.after(2), Cursor { index: 0, position: 1 });
}

#[test]
fn counters_may_wrap() {
    let ring = ring_at(u32::MAX - 5, u32::MAX - 40);
    for round in 0..1000u32 {
        let message = vec![round as u8; (round as usize * 37) % ring.limit()];
        send(&ring, &message);
        assert_eq!(next(&ring).as_deref(), Some(&message[..]));
        assert_eq!((next(&ring), ring.taken()), (None, 0));
    }
}

#[test]
fn records_come_in_order_of_reservation() {
    let ring = small();
    let places = [ring.reserve(1).unwrap(), ring.reserve(1).unwrap()];
    ring.publish(places[1], b"b");
    assert_eq!((next(&ring), ring.peek()), (None, Next::InFlight(process::own_id())));
    ring.publish(places[0], b"a");
    assert_eq!(next(&ring).unwrap(), b"a");
    assert_eq!(next(&ring).unwrap(), b"b");
}

#[test]
fn the_next_writer_moves_a_tail_that_was_left_behind() {
    let ring = small();
    let before = ring.header().tail.0.load(Relaxed);
    let place = ring.reserve(100).unwrap();
    ring.header().tail.0.store(before, Relaxed); // As if the first had not got to moving it.
    let second = ring.reserve(1).unwrap();
    assert_eq!(second, place.after(2));
    ring.publish(second, b"b");
    ring.publish(place, &[1; 100]);
    assert_eq!(next(&ring).unwrap(), [1; 100]);
    assert_eq!(next(&ring).unwrap(), b"b");
}

#[test]
fn a_writer_with_old_cursors_takes_nothing() {
    let ring = small();
    let (tail, head) = (Cursor { index: 0, position: 0 }, Cursor { index: 0, position: 0 });
    send(&ring, b"a");
    assert_eq!(ring.try_reserve(tail, head, 1), Ok(false), "slot 0 is taken");
    next(&ring).unwrap();
    assert_eq!(ring.try_reserve(tail, head, 1), Ok(false), "slot 0 is free, but for the next lap");
    assert_eq!(ring.try_reserve(tail, tail.after(1), 1), Ok(false), "the tail is behind the head");
    assert_eq!((ring.peek(), ring.taken()), (Next::Empty, 0));
    send(&ring, b"b");
    assert_eq!(next(&ring).unwrap(), b"b");
}

#[test]
fn a_skipped_record_leaves_head_and_tail_together() {
    let ring = small();
    let before = ring.header().tail.0.load(Relaxed);
    ring.reserve(100).unwrap();
    ring.header().tail.0.store(before, Relaxed);
    ring.read().unwrap().skip(process::own_id() + 1);
    assert_eq!(ring.peek(), Next::InFlight(process::own_id()), "another writer's record stays");
    ring.read().unwrap().skip(process::own_id());
    assert_eq!((ring.peek(), ring.taken()), (Next::Empty, 0));
    send(&ring, b"x");
    ring.read().unwrap().skip(process::own_id());
    assert_eq!(next(&ring).unwrap(), b"x", "what is published is not skipped");
}

#[test]
fn a_full_ring_does_not_take_last_laps_slots_for_this_laps() {
    let ring = small();
    let slots = ring.region.granules();
    for round in 0..3 {
        for _ in 0..slots {
            send(&ring, b"x");
        }
        let full = Error::MailboxFull { needed: GRANULE, free: 0 };
        assert_eq!(ring.reserve(0), Err(full), "round {round}");
        assert_eq!(ring.taken(), slots);
        for _ in 0..slots {
            assert_eq!(next(&ring).unwrap(), b"x");
        }
        assert_eq!((next(&ring), ring.taken()), (None, 0));
    }
}

#[test]
fn the_next_reader_finishes_what_a_dead_one_began() {
    let ring = small();
    send(&ring, &[1; 100]);
    send(&ring, b"next");
    let before = ring.header().head.0.load(Relaxed);
    next(&ring).unwrap();
    // The reader had freed the slot and not moved the head when it died. No process has this id: it is
    // above the kernel's highest.
    ring.header().head.0.store(before, Relaxed);
    ring.header().reader.0.store((1 << 23) | 1, Relaxed);
    assert_eq!(next(&ring).unwrap(), b"next");
    assert_eq!(ring.taken(), 0);
}

#[test]
fn one_reads_at_a_time() {
    let ring = small();
    let reading = ring.read().unwrap();
    assert!(matches!(ring.read(), Err(Error::InvalidArgument(_))));
    drop(reading);
    ring.claim().unwrap();
    ring.header().reader.0.store(1 << 1, Relaxed); // The init process, which lives.
    assert!(matches!(ring.read(), Err(Error::InvalidArgument(_))));
    assert!(matches!(ring.claim(), Err(Error::InvalidArgument(_))));
}

#[test]
fn a_message_written_in_time_is_delivered_after_the_close() {
    let ring = small();
    let place = ring.reserve(1).unwrap();
    ring.header().closed.store(1, SeqCst);
    assert_eq!(ring.reserve(1), Err(Error::MailboxClosed));
    assert_eq!(next(&ring), None);
    ring.publish(place, b"x");
    assert_eq!(next(&ring).unwrap(), b"x");
    assert_eq!(ring.peek(), Next::End);
    assert_eq!(ring.read().unwrap().next(|_| ()), Err(Error::MailboxClosed));
    ring.header().closed.store(0, SeqCst); // The seal holds for a writer that has not seen the flag.
    assert_eq!(ring.reserve(1), Err(Error::MailboxClosed));
}

#[test]
fn a_message_stays_if_taking_it_panics() {
    let ring = small();
    send(&ring, b"x");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = ring.read().unwrap().next(|_| panic!("on purpose"));
    }));
    assert!(panicked.is_err());
    assert_eq!(next(&ring).unwrap(), b"x");
}
