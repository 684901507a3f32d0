//! The room that a step has for rows.

/// The room that the step being planned has left.
pub(crate) struct Room {
    pub tokens: usize,
    /// Of those, tokens that prefills may take.
    pub prefill: usize,
    pub pages: usize,
    pub logits: usize,
    /// A running sequence has a prompt to compute.
    pub prompts: bool,
    /// Nothing is admitted: a sequence was preempted or left out.
    pub closed: bool,
    /// A prompt got no tokens because a window of it got no pages.
    pub starved: bool,
}
