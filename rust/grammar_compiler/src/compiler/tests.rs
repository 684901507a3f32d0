//! The compiler with a build function of the test: one compilation for equal descriptions, panics, cancellation, limits.

use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::backends::tests::accepts;
use crate::compiler::standalone::run_within;
use crate::context::tests::context;
use pyengine_grammar::refusal;

fn key(request: u64) -> RequestKey {
    RequestKey { frontend: 0, request }
}

/// A compiler, and the channel that its `notify` sends to.
fn compiler(
    settings: Settings,
    build: fn(&GrammarContext, &[u8], &CancelToken) -> Verdict,
) -> (ThreadedCompiler, mpsc::Receiver<()>) {
    let (sender, receiver) = mpsc::channel();
    let notify = Box::new(move || {
        let _ = sender.send(());
    });
    let context = context(&[]);
    context.load().unwrap();
    (ThreadedCompiler::with_build(Arc::new(context), settings, notify, build), receiver)
}

fn wait(compiler: &mut ThreadedCompiler, notified: &mpsc::Receiver<()>, count: usize) -> Vec<(u64, Verdict)> {
    let mut verdicts = Vec::new();
    while verdicts.len() < count {
        notified.recv_timeout(Duration::from_secs(60)).expect("a verdict comes");
        compiler.collect(&mut verdicts);
    }
    verdicts.sort_by_key(|(key, _)| key.request);
    verdicts.into_iter().map(|(key, verdict)| (key.request, verdict)).collect()
}

fn message(verdict: &Verdict) -> String {
    verdict.as_ref().err().map(|refusal| refusal.message.clone()).unwrap_or_default()
}

/// Panics, waits or refuses as the description says.
fn scripted(_: &GrammarContext, description: &[u8], cancel: &CancelToken) -> Verdict {
    let text = String::from_utf8_lossy(description).into_owned();
    match &*text {
        "panic" => panic!("scripted panic"),
        "wait" => loop {
            cancel.check()?;
            std::thread::yield_now();
        },
        _ => Err(refusal(text)),
    }
}

#[test]
fn the_same_is_compiled_once() {
    let (mut compiler, notified) = compiler(Settings::default(), build);
    let good = br#"{"kind": "json_object"}"#;
    assert!(compiler.ask(key(1), 0, good).is_none());
    let again = compiler.ask(key(2), 0, good);
    let bad = compiler.ask(key(3), 0, br#"{"kind": "regex", "pattern": "("}"#);
    let count = 1 + usize::from(again.is_none()) + usize::from(bad.is_none());
    let verdicts = wait(&mut compiler, &notified, count);
    assert!(verdicts.iter().all(|(request, verdict)| verdict.is_ok() == (*request != 3)));
    let tokens = compiler.shared.context.load().unwrap();
    assert!(accepts(&tokens, verdicts[0].1.as_ref().unwrap(), r#"{"a": [1, 2]}"#));

    assert!(compiler.ask(key(4), 0, good).is_some_and(|verdict| verdict.is_ok()), "from the cache");
    let refused = compiler.ask(key(5), 0, br#"{"kind": "regex", "pattern": "("}"#).unwrap();
    assert!(message(&refused).contains("not valid"));
    let long = compiler.ask(key(6), 0, &vec![b' '; 2 << 20]).unwrap();
    assert!(message(&long).contains("bytes"));
    let stats = compiler.stats();
    assert_eq!((stats.compiles, stats.entries, stats.hits + stats.misses), (2, 2, 5));
    assert_eq!(stats.compile_ns.count(), 2);
    assert!(stats.bytes > 0 && stats.bytes <= Settings::default().cache_bytes);
}

#[test]
fn a_panic_is_a_refusal() {
    let (mut compiler, notified) = compiler(Settings { threads: 1, ..Settings::default() }, scripted);
    assert!(compiler.ask(key(1), 0, b"panic").is_none());
    assert!(message(&wait(&mut compiler, &notified, 1)[0].1).contains("scripted panic"));
    assert!(compiler.ask(key(2), 0, b"fine").is_none());
    assert_eq!(message(&wait(&mut compiler, &notified, 1)[0].1), "fine");
}

#[test]
fn a_cancelled_request_gets_no_verdict() {
    let (mut compiler, notified) = compiler(Settings { threads: 1, ..Settings::default() }, scripted);
    assert!(compiler.ask(key(1), 0, b"wait").is_none());
    assert!(compiler.ask(key(2), 0, b"behind it").is_none());
    assert!(compiler.ask(key(3), 0, b"never").is_none());
    compiler.cancel(key(3));
    // That frees the only thread.
    compiler.cancel(key(1));
    let verdicts = wait(&mut compiler, &notified, 1);
    assert_eq!((verdicts[0].0, message(&verdicts[0].1)), (2, "behind it".to_owned()));
    compiler.cancel(key(2));
    compiler.cancel(key(99));
    let stats = compiler.stats();
    assert_eq!((stats.cancelled, stats.queued), (2, 0));
    assert!(compiler.shared.lock().waiting.is_empty() && compiler.shared.lock().jobs.is_empty());
}

#[test]
fn a_full_queue_refuses() {
    let (mut compiler, _notified) =
        compiler(Settings { threads: 0, queue: 2, ..Settings::default() }, scripted);
    assert!(compiler.ask(key(1), 0, b"a").is_none());
    assert!(compiler.ask(key(2), 0, b"a").is_none(), "no place of its own");
    let full = compiler.ask(key(3), 0, b"b").unwrap();
    assert!(message(&full).contains("too many") && full.is_err_and(|refusal| refusal.busy));
    assert!(compiler.ask(key(4), 1, b"b").is_none(), "half of the places are not this tenant's");
    assert!(compiler.ask(key(5), 1, b"c").is_some() && compiler.ask(key(6), 2, b"c").is_some());
}

#[test]
fn without_threads_requests_are_refused() {
    let (mut compiler, _notified) = compiler(Settings { stack: 1 << 60, ..Settings::default() }, scripted);
    let refused = compiler.ask(key(1), 0, b"a").unwrap();
    assert!(message(&refused).contains("starts no thread") && refused.is_err_and(|refusal| refusal.busy));
    assert!(compiler.shared.lock().jobs.is_empty());
}

#[test]
fn what_takes_too_long_is_refused_in_time() {
    /// Ends only when it is cancelled.
    fn slow(_: &GrammarContext, description: &[u8], cancel: &CancelToken) -> Verdict {
        while description.starts_with(b"stuck") && !cancel.is_cancelled() {
            std::hint::spin_loop();
        }
        Err(refusal("done"))
    }
    let timeout = Duration::from_millis(500);
    let settings = Settings { threads: 1, timeout, max_slow: 1, ..Settings::default() };
    let (mut compiler, notified) = compiler(settings, slow);
    // A busy machine gives it little time: then it is asked for again, and waits for the same compilation.
    let refused = loop {
        let known = compiler.ask(key(1), 0, b"stuck");
        let refused = known.unwrap_or_else(|| wait(&mut compiler, &notified, 1).remove(0).1);
        if !refused.as_ref().is_err_and(|refusal| refusal.busy) {
            break refused;
        }
    };
    assert!(message(&refused).contains("longer than 0.5 s"));
    let known = compiler.ask(key(2), 0, b"stuck").expect("it is not tried again at once");
    assert!(message(&known).contains("longer"));
    assert!(compiler.ask(key(3), 0, b"quick").is_none());
    let quick = message(&wait(&mut compiler, &notified, 1)[0].1);
    // Beside much other work it may be late itself.
    assert!(["done", "too many", "longer"].iter().any(|end| quick.contains(end)), "{quick}");
    assert!(compiler.stats().timeouts >= 1);
}

#[test]
fn a_standalone_compilation_has_a_timeout() {
    let context = Arc::new(context(&[]));
    let verdict = compile_within(&context, br#"{"kind": "json_value"}"#, Duration::from_secs(60));
    assert_eq!(verdict.map(|compiled| compiled.backend()).ok(), Some("llguidance"));
    let verdict = run_within(scripted, &context, b"wait", Duration::ZERO);
    assert!(message(&verdict).contains("longer"));
}

/// A compilation that gets no CPU time holds its request up for a while only, and serves the next one.
#[test]
fn what_a_busy_machine_holds_up_goes_on() {
    static LET_GO: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
    fn held_up(_: &GrammarContext, description: &[u8], _: &CancelToken) -> Verdict {
        drop(LET_GO.1.wait_while(LET_GO.0.lock().unwrap(), |go| !*go));
        Err(refusal(String::from_utf8_lossy(description)))
    }
    let timeout = Duration::from_millis(50);
    let settings = Settings { threads: 1, timeout, ..Settings::default() };
    let (mut compiler, notified) = compiler(settings, held_up);
    assert!(compiler.ask(key(1), 0, b"a").is_none() && compiler.ask(key(2), 0, b"behind").is_none());
    let late = wait(&mut compiler, &notified, 2);
    assert!(late.iter().all(|(_, verdict)| verdict.as_ref().is_err_and(|refusal| refusal.busy)));
    assert!(message(&late[0].1).contains("still being compiled") && message(&late[1].1).contains("too many"));
    assert!(compiler.ask(key(3), 0, b"a").is_none(), "it waits for the same compilation");
    *LET_GO.0.lock().unwrap() = true;
    LET_GO.1.notify_all();
    // The wait of the last may have ended just now; the verdict is kept in any case.
    wait(&mut compiler, &notified, 1);
    while compiler.stats().compiles == 0 {
        std::thread::yield_now();
    }
    assert_eq!(message(&compiler.ask(key(4), 0, b"a").expect("it is known")), "a");
    let stats = compiler.stats();
    assert_eq!((stats.compiles, stats.timeouts, stats.queued), (1, 0, 0));
    assert!(compiler.shared.lock().waiting.is_empty() && compiler.shared.lock().jobs.is_empty());
}
