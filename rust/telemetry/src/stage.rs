//! Stages and tracks of spans. The one place that names them; Python, the docs and
//! the metrics take the names from here.

/// Declares an enum of one byte with its names.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[doc = $meaning:literal])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[doc = $meaning])* $variant,)* }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name everywhere outside of Rust.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// What it is, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($meaning),*).trim_start(),)* }
            }

            /// The one of that number.
            pub fn from_number(number: u8) -> Option<Self> {
                Self::ALL.get(usize::from(number)).copied()
            }
        }
    };
}

named! {
    /// A part of a request's way, or of a step's.
    Stage {
        /// Reading a request's JSON.
        HttpDecode = "http_decode",
        /// Rendering the chat template.
        Template = "template",
        /// Text to tokens.
        Tokenize = "tokenize",
        /// From a request's arrival to its admission; no CPU time.
        QueueWait = "queue_wait",
        /// From a request's admission to the delivery of its first token; no CPU time.
        Prefill = "prefill",
        /// From a request's first token to its end; no CPU time.
        Decode = "decode",
        /// From the commit of tokens until a client's connection, or the caller's loop, has taken them;
        /// no CPU time.
        Deliver = "deliver",
        /// From a request's arrival until its first token was delivered, in the same sense; no CPU time.
        FirstToken = "first_token",
        /// From one delivery of a request's tokens to the next; no CPU time.
        NextToken = "next_token",
        /// Reading the scheduler's mailbox, and what Python does between two steps.
        Drain = "drain",
        /// Choosing the rows of a step: deadlines, policy, the sequence table.
        Admit = "admit",
        /// Looking for a prompt's cached prefix.
        Match = "match",
        /// Finding blocks for what is admitted or grows.
        Allocate = "allocate",
        /// Writing the step's buffers.
        BufferFill = "buffer_fill",
        /// Drafting tokens ahead on the host.
        Draft = "draft",
        /// Filling and uploading grammar masks.
        Grammar = "grammar",
        /// Starting the step on the device.
        Launch = "launch",
        /// The device works; in the track of the device only.
        Device = "device",
        /// Choosing tokens, or making the device do so; in the track of the device its part of a step that had to
        /// wait for masks.
        Sample = "sample",
        /// Waiting for the step's tokens; what is exposed of it is the wake-up that came late.
        CopyBack = "copy_back",
        /// Taking the tokens in: appending, testing for the end, caching prefixes.
        Commit = "commit",
        /// Tokens to bytes to text.
        Detokenize = "detokenize",
        /// Looking for stop strings.
        StopMatch = "stop_match",
        /// Encoding, sending and decoding messages between actors.
        Message = "message",
        /// Text to server-sent events.
        SseEncode = "sse_encode",
        /// Giving bytes to the HTTP server.
        SocketWrite = "socket_write",
        /// The scheduler sleeps, as there is nothing to do; no CPU time.
        Idle = "idle",
        /// By how much a timer of a frontend's loop came late, whatever the cause; no CPU time.
        LoopLag = "loop_lag",
        /// A frontend's loop was ready to run and had no core; no CPU time.
        CoreWait = "core_wait",
        /// A frontend's loop waited while another thread kept the GIL; no CPU time.
        GilWait = "gil_wait",
        /// A call on a frontend's loop did not return to it: it computed, or blocked.
        LoopHeld = "loop_held",
    }
}

impl Stage {
    /// Whether it prepares one request, and nothing of it is for others.
    pub fn prepares(self) -> bool {
        matches!(self, Self::HttpDecode | Self::Template | Self::Tokenize)
    }
}

named! {
    /// The owner of a span's time. A track of one thread is a timeline without overlaps.
    Track {
        /// The scheduler's thread: a timeline without gaps.
        Scheduler = "scheduler",
        /// The detokenizer's thread.
        Detokenizer = "detokenizer",
        /// The asyncio loops of all frontends together.
        Frontend = "frontend",
        /// Time that requests wait; no thread works in it.
        Request = "request",
        /// The device.
        Device = "device",
        /// The time by which the asyncio loops of frontends came late; no thread works in it.
        Loop = "loop",
    }
}

/// A stretch of time: a stage in a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The kind of work.
    pub stage: Stage,
    /// The actor, request or device that did it.
    pub track: Track,
    /// CLOCK_MONOTONIC at its beginning, in nanoseconds.
    pub start: u64,
    /// And at its end.
    pub end: u64,
    /// The step, message or request it belongs to, as its track counts them; 0 for none.
    pub step: u64,
}
