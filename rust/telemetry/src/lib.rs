//! Whole-path accounting: where every microsecond went, and whether the device waited for it.
//!
//! ```text
//!  scheduler   ├drain┤├admit┤├allocate┤├fill┤├launch┤├──────copy_back──────┤├commit┤├message┤  spans, without a gap
//!  detokenizer          ├─detokenize─┤├message┤                                                 spans
//!  frontend         ├─message─┤├sse_encode┤├write┤
//!        all of them write ──► Ring (shared memory) ──► Accountant: exposed, overlapped
//!  device      ├──────────── step N ─────────────┤├───────────── step N+1 ─────
//! ```
//!
//! [`stage`] names the stages, [`ring`] is the flight recorder's memory, [`recorder`] what writes it, [`accountant`]
//! what reads it into the [`books`], which judge each span by what the device was doing; [`intervals`] say when that
//! was. [`histogram`] is for what is counted by size.

mod accountant;
mod books;
mod clock;
mod histogram;
mod intervals;
mod recorder;
mod ring;
mod stage;

pub use accountant::Accountant;
pub use books::{STEP_BOUNDS_NS, StageTotal, Totals};
pub use clock::now_ns;
pub use histogram::{Histogram, LATENCY_BOUNDS_NS, LENGTH_BOUNDS, MAX_BOUNDS, TOKEN_BOUNDS_NS};
pub use recorder::{Recorder, Timeline};
pub use stage::{Span, Stage, Track};
