//! The thread from outside: what it answers, what it keeps for a ring that is full, and how it ends.

use super::*;
use pyengine_messages::{Counts, Delta, FinishReason, Message, OpenStream, RequestKey, SequenceTokens};

struct House {
    inbox: Mailbox,
    scheduler: Mailbox,
    frontends: Vec<Mailbox>,
    detokenizer: Detokenizer,
}

impl House {
    /// Tokens 0..26 are the letters, 26 is a space, 27 special.
    fn new(capacity: usize) -> Self {
        let letters: Vec<_> =
            ('a'..='z').enumerate().map(|(id, char)| format!(r#""{char}": {id}"#)).collect();
        let json = format!(
            r#"{{"added_tokens": [{{"id": 27, "content": "<|end|>", "special": true}}],
                "decoder": {{"type": "ByteLevel"}}, "model": {{"vocab": {{{}, "Ġ": 26}}}}}}"#,
            letters.join(", ")
        );
        let vocabulary = Arc::new(Vocabulary::from_tokenizer_json(&json).unwrap());
        let mailbox = || Mailbox::new(capacity).unwrap();
        let (inbox, scheduler, frontends) =
            (Mailbox::new(1 << 16).unwrap(), mailbox(), vec![mailbox(), mailbox()]);
        let detokenizer = Detokenizer::new(
            vocabulary,
            inbox.clone(),
            scheduler.clone(),
            frontends.clone(),
            Timeline::silent(),
        );
        detokenizer.start().unwrap();
        Self { inbox, scheduler, frontends, detokenizer }
    }

    fn tell(&self, message: &Message) {
        let mut bytes = Vec::new();
        message.encode_into(&mut bytes).unwrap();
        while let Err(error) = self.inbox.send(&bytes) {
            assert!(matches!(error, Error::MailboxFull { .. }), "{error}");
            thread::yield_now();
        }
    }

    fn open(&self, frontend: u32, request: u64, stop: &[&str], generated: &[u32]) {
        self.tell(&Message::OpenStream(OpenStream {
            key: RequestKey { frontend, request },
            prompt_length: 5,
            generated: generated.iter().flat_map(|token| token.to_le_bytes()).collect(),
            stop: stop.iter().map(ToString::to_string).collect(),
            include_stop: false,
            skip_special_tokens: true,
            places: request == 77,
        }));
    }

    fn end(&self) {
        self.inbox.close();
        assert!(self.detokenizer.join(Some(Duration::from_secs(20))).unwrap());
    }
}

fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(|byte| if byte == b' ' { 26 } else { u32::from(byte - b'a') }).collect()
}

fn row(frontend: u32, request: u64, text: &str, finish: Option<FinishReason>) -> SequenceTokens {
    let key = RequestKey { frontend, request };
    SequenceTokens { tokens: tokens(text), finish, key, ..SequenceTokens::default() }
}

fn read(mailbox: &Mailbox) -> Message {
    assert!(mailbox.wait(Some(Duration::from_secs(20)), Duration::ZERO).unwrap(), "a message comes");
    let mut bytes = Vec::new();
    assert!(mailbox.receive(&mut bytes).unwrap());
    Message::decode(&bytes).unwrap()
}

fn deltas(mailbox: &Mailbox) -> Vec<Delta> {
    match read(mailbox) {
        Message::Deltas(deltas) => deltas,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_step_is_one_message_a_frontend() {
    let house = House::new(1 << 16);
    for (frontend, request) in [(0, 1), (0, 2), (1, 1)] {
        house.open(frontend, request, &[], &[]);
    }
    house.tell(&Message::TokensOut(vec![
        SequenceTokens {
            counts: Some(Counts { cached_tokens: 4, ..Counts::default() }),
            ..row(0, 1, "ab", None)
        },
        row(1, 1, "c", None),
        row(0, 2, "d", Some(FinishReason::Length)),
        row(0, 9, "x", None),
    ]));
    let first = deltas(&house.frontends[0]);
    assert_eq!(house.detokenizer.open_streams(), 2);
    assert_eq!(
        first.iter().map(|delta| (delta.request, delta.text.as_str())).collect::<Vec<_>>(),
        [(1, "ab"), (2, "d")]
    );
    assert_eq!((first[0].prompt_tokens, first[0].cached_tokens, first[0].completion_tokens), (5, 4, 2));
    assert_eq!((first[0].finish, first[1].finish), (None, Some(FinishReason::Length)));
    assert_eq!(deltas(&house.frontends[1])[0].text, "c");
    house.end();
    assert_eq!((house.detokenizer.ignored(), house.detokenizer.open_streams()), (1, 0));
    assert_eq!(
        (house.frontends[0].used(), house.scheduler.used(), house.detokenizer.failure()),
        (0, 0, None)
    );
    assert!(!house.frontends[0].is_closed());
}

#[test]
fn a_stop_string_ends_the_request_and_later_tokens_are_nothing() {
    let house = House::new(1 << 16);
    house.open(0, 1, &["stop"], &[]);
    for text in ["ok st", "opping", "x"] {
        house.tell(&Message::TokensOut(vec![row(0, 1, text, None)]));
    }
    house.end();
    let first = &deltas(&house.frontends[0])[0];
    assert_eq!((first.text.as_str(), first.tokens.len(), first.finish), ("ok ", 5, None));
    let last = &deltas(&house.frontends[0])[0];
    assert_eq!((last.text.as_str(), &last.tokens, last.completion_tokens), ("", &tokens("op"), 7));
    assert_eq!((last.finish, last.stop_string.as_deref()), (Some(FinishReason::Stop), Some("stop")));
    assert_eq!(read(&house.scheduler), Message::StopMatched(RequestKey { frontend: 0, request: 1 }));
    assert_eq!((house.frontends[0].used(), house.scheduler.used()), (0, 0));
}

#[test]
fn a_stop_token_counts_but_is_no_text_and_withheld_text_comes_out() {
    let house = House::new(1 << 16);
    house.open(0, 1, &["bx"], &[]);
    let finished = row(0, 1, "abe", Some(FinishReason::Stop));
    house.tell(&Message::TokensOut(vec![SequenceTokens { stop_token: Some(4), ..finished }]));
    let last = &deltas(&house.frontends[0])[0];
    assert_eq!((last.text.as_str(), last.stop_token, last.completion_tokens), ("ab", Some(4), 3));
    assert_eq!(
        (last.finish, last.stop_string.as_deref(), last.tokens.len()),
        (Some(FinishReason::Stop), None, 3)
    );
    house.end();
}

#[test]
fn a_request_goes_on_after_a_restart() {
    let house = House::new(1 << 16);
    house.open(0, 1, &["stop"], &tokens("ok st"));
    house.tell(&Message::TokensOut(vec![row(0, 1, "ay", None)]));
    let delta = &deltas(&house.frontends[0])[0];
    assert_eq!((delta.text.as_str(), delta.tokens.len(), delta.completion_tokens), ("stay", 2, 7));
    // One whose last delta was lost.
    house.open(0, 2, &["stop"], &tokens("ok stop"));
    let last = &deltas(&house.frontends[0])[0];
    assert_eq!((last.text.as_str(), last.finish, last.completion_tokens), ("", Some(FinishReason::Stop), 7));
    assert_eq!(read(&house.scheduler), Message::StopMatched(RequestKey { frontend: 0, request: 2 }));
    house.end();
}

#[test]
fn a_slow_reader_neither_loses_nor_hinders() {
    let house = House::new(4096);
    house.open(0, 1, &[], &[]);
    house.open(1, 1, &[], &[]);
    let mut quick = String::new();
    for step in 0..600 {
        let finish = (step == 599).then_some(FinishReason::Length);
        house.tell(&Message::TokensOut(vec![row(0, 1, "slow ", finish), row(1, 1, "quick ", finish)]));
        quick.push_str(&deltas(&house.frontends[1])[0].text);
    }
    assert_eq!(quick, "quick ".repeat(600));
    let (mut slow, mut count, mut finish) = (String::new(), 0, None);
    while finish.is_none() {
        for delta in deltas(&house.frontends[0]) {
            slow.push_str(&delta.text);
            count += delta.tokens.len();
            finish = delta.finish;
            assert_eq!(delta.completion_tokens as usize, count);
        }
    }
    assert_eq!((slow, count), ("slow ".repeat(600), 3000));
    house.end();
}

#[test]
fn the_requests_of_a_closed_frontend_are_aborted() {
    let house = House::new(1 << 16);
    for (frontend, request) in [(0, 1), (0, 2), (1, 1)] {
        house.open(frontend, request, &[], &[]);
    }
    house.frontends[0].close();
    house.tell(&Message::TokensOut(vec![row(0, 1, "a", None), row(1, 1, "b", None)]));
    house.open(0, 3, &[], &[]);
    let mut aborted = Vec::new();
    while aborted.len() < 3 {
        match read(&house.scheduler) {
            Message::Abort(key) if key.frontend == 0 => aborted.push(key.request),
            other => panic!("{other:?}"),
        }
    }
    aborted.sort_unstable();
    assert_eq!(aborted, [1, 2, 3]);
    assert_eq!(deltas(&house.frontends[1])[0].text, "b");
    assert_eq!(house.detokenizer.open_streams(), 1);
    house.end();
}

#[test]
fn what_it_cannot_do_is_answered() {
    let house = House::new(1 << 16);
    house.open(0, 1, &[""], &[]);
    assert_eq!(deltas(&house.frontends[0])[0].finish, Some(FinishReason::Error));
    assert_eq!(read(&house.scheduler), Message::Abort(RequestKey { frontend: 0, request: 1 }));
    house.open(7, 1, &[], &[]);
    house.end();
    assert_eq!((house.detokenizer.ignored(), house.detokenizer.failure()), (1, None));
}

#[test]
fn a_failure_is_told_and_closes_the_mailboxes() {
    let house = House::new(1 << 16);
    house.inbox.send(b"\x92\xa5abort\xc0").unwrap();
    assert!(house.detokenizer.join(Some(Duration::from_secs(20))).unwrap());
    assert!(house.detokenizer.failure().unwrap().contains("abort"));
    assert!(house.inbox.is_closed() && house.scheduler.is_closed() && house.frontends[1].is_closed());
    assert!(matches!(house.detokenizer.start(), Err(Error::InvalidArgument(_))));
}

#[test]
fn a_panic_is_a_failure() {
    let (shared, mailbox) = (Shared::default(), Mailbox::new(4096).unwrap());
    conclude(&shared, std::slice::from_ref(&mailbox), || panic!("on purpose"));
    assert_eq!(lock(&shared.failure).as_deref(), Some("panic: on purpose"));
    assert!(mailbox.is_closed() && *lock(&shared.ended));
}
