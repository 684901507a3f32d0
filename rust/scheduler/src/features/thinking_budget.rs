//! Thinking budgets: how many tokens the reasoning of an answer may have.
//!
//! ```text
//!            opening mark                budget tokens               closing mark
//!  Before ──────────────────► Thinking ──────────────────► Closing ────────────────► Over
//!     └── other text ──► Over     └── the model closes it ──────────────────────────►─┘
//! ```
//!
//! A budget is a grammar around the answer's own, or around one that allows everything: behind the budget's last token it
//! allows the tokens of the closing mark alone. So drafts, masks, tokens that are certain and restarts need no rule for it.
//! While the budget cannot end within a row, the row has no mask. O(1) a token.

use std::sync::Arc;

use pyengine_base::error::{Error, Result};
use pyengine_grammar::Grammar;
use pyengine_grammar::masks::Mask;
use pyengine_messages::{Extension, token_ids};
use serde::{Deserialize, Serialize};

/// Bounds the reasoning of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThinkingBudgetExtension {
    /// Most tokens between the marks.
    pub tokens: u32,
    /// The opening mark, token ids as u32 little-endian.
    #[serde(with = "serde_bytes")]
    pub open: Vec<u8>,
    /// The closing mark, in the same form: with its first token the model itself ends the reasoning.
    #[serde(with = "serde_bytes")]
    pub close: Vec<u8>,
    /// The prompt has opened the reasoning.
    pub begun: bool,
    /// The reasoning may be opened more than once; all of it has one budget.
    pub again: bool,
}

impl Extension for ThinkingBudgetExtension {
    const TAG: &'static str = "thinking_budget";
}

/// Tokens that may come before an opening mark, such as line ends; behind more of them it is text.
const LEAD: u32 = 4;
/// Places that are kept to go back to, at least: more than there are drafts in a row.
const KEPT: usize = 512;

/// The rule of one request.
#[derive(Debug)]
pub(super) struct ThinkingBudget {
    tokens: u32,
    open: Arc<[u32]>,
    close: Arc<[u32]>,
    begun: bool,
    again: bool,
}

impl ThinkingBudget {
    /// `InvalidArgument` for a mark without tokens.
    pub fn new(asked: &ThinkingBudgetExtension) -> Result<Self> {
        let (open, close): (Arc<[u32]>, Arc<[u32]>) = (token_ids(&asked.open), token_ids(&asked.close));
        if open.is_empty() || close.is_empty() {
            return Err(Error::InvalidArgument("a mark of the reasoning has no tokens".into()));
        }
        Ok(Self { tokens: asked.tokens, open, close, begun: asked.begun, again: asked.again })
    }

    /// The place behind the opening mark, or behind another token of the reasoning.
    fn thinking(&self, spent: u32) -> Place {
        if spent < self.tokens { Place::Thinking { spent } } else { Place::Closing { sent: 0 } }
    }

    /// The place behind the closing mark, of reasoning that had `spent` tokens.
    fn closed(&self, spent: u32) -> Place {
        if self.again { Place::Before { opened: 0, lead: 0, spent } } else { Place::Over }
    }

    fn start(&self) -> Place {
        if self.begun { self.thinking(0) } else { Place::Before { opened: 0, lead: 0, spent: 0 } }
    }

    /// The place behind one more token.
    fn behind(&self, place: Place, token: u32) -> Place {
        match place {
            Place::Before { opened, spent, .. } if token == self.open[opened as usize] => {
                let opened = opened + 1;
                if opened as usize == self.open.len() {
                    self.thinking(spent)
                } else {
                    Place::Before { opened, lead: 0, spent }
                }
            }
            Place::Before { lead, .. } if !self.again && lead == LEAD => Place::Over,
            Place::Before { lead, spent, .. } => {
                let opened = u32::from(token == self.open[0] && self.open.len() > 1);
                Place::Before { opened, lead: lead + u32::from(!self.again), spent }
            }
            Place::Thinking { spent } if token == self.close[0] => self.closed(spent),
            Place::Thinking { spent } => self.thinking(spent + 1),
            Place::Closing { sent } if token == self.close[sent as usize] => {
                let sent = sent + 1;
                if sent as usize == self.close.len() {
                    self.closed(self.tokens)
                } else {
                    Place::Closing { sent }
                }
            }
            // The answer's grammar had no place for the mark.
            Place::Closing { sent: 0 } => place,
            Place::Closing { .. } | Place::Over => Place::Over,
        }
    }

    /// How many tokens may come before one has to be the closing mark's, whatever they are.
    fn room(&self, place: Place) -> u32 {
        match place {
            Place::Before { opened, spent, .. } => {
                (self.open.len() as u32 - opened) + self.tokens.saturating_sub(spent)
            }
            Place::Thinking { spent } => self.tokens - spent,
            Place::Closing { .. } => 0,
            Place::Over => u32::MAX,
        }
    }
}

/// How far an answer has come.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    /// `opened` tokens of the opening mark have come, behind `lead` others.
    Before {
        opened: u32,
        lead: u32,
        spent: u32,
    },
    Thinking {
        spent: u32,
    },
    /// `sent` tokens of the closing mark have come in the place of what the model would have said.
    Closing {
        sent: u32,
    },
    Over,
}

/// A grammar whose answers keep to a thinking budget.
pub(super) struct Budgeted {
    inner: Box<dyn Grammar>,
    rule: ThinkingBudget,
    place: Place,
    /// Where the answer was before each of its last tokens.
    before: Vec<Place>,
}

impl Budgeted {
    pub fn new(rule: ThinkingBudget, inner: Box<dyn Grammar>) -> Self {
        Self { inner, place: rule.start(), rule, before: Vec::new() }
    }

    /// The token that must come next, if the answer's grammar, which allows `mask`, has a place for it.
    fn next(&self, mask: Arc<Mask>) -> Arc<Mask> {
        match self.place {
            Place::Closing { sent } if mask.has(self.rule.close[sent as usize]) => {
                Arc::new(Mask::of(vec![self.rule.close[sent as usize]]))
            }
            _ => mask,
        }
    }
}

impl Grammar for Budgeted {
    fn mask(&mut self) -> Arc<Mask> {
        let mask = self.inner.mask();
        self.next(mask)
    }

    fn known_mask(&mut self) -> Option<Arc<Mask>> {
        let mask = self.inner.known_mask()?;
        Some(self.next(mask))
    }

    fn advance(&mut self, token: u32) -> bool {
        if !self.inner.advance(token) {
            return false;
        }
        if self.before.len() == 2 * KEPT {
            self.before.drain(..KEPT);
        }
        self.before.push(self.place);
        self.place = self.rule.behind(self.place, token);
        true
    }

    fn roll_back(&mut self, tokens: usize) {
        self.inner.roll_back(tokens);
        if tokens > 0 {
            let at = self.before.len() - tokens;
            self.place = self.before[at];
            self.before.truncate(at);
        }
    }

    fn is_terminated(&self) -> bool {
        self.inner.is_terminated()
    }

    fn forced_tokens(&mut self, limit: usize, out: &mut Vec<u32>) {
        match self.place {
            Place::Closing { sent } => out.extend(self.rule.close[sent as usize..].iter().take(limit)),
            _ => self.inner.forced_tokens(limit, out),
        }
    }

    fn closing_tokens(&mut self, limit: usize) -> Option<Vec<u32>> {
        self.inner.closing_tokens(limit)
    }

    fn closes_within(&mut self, limit: usize) -> bool {
        self.inner.closes_within(limit)
    }

    fn unbound_tokens(&self) -> u32 {
        self.inner.unbound_tokens().min(self.rule.room(self.place))
    }

    fn failure(&self) -> Option<&str> {
        self.inner.failure()
    }
}

/// A grammar that allows everything, and whose answers never end by themselves.
pub(super) struct Anything(pub Arc<Mask>);

impl Anything {
    /// The mask of a whole vocabulary.
    pub fn mask_of(vocab_size: usize) -> Arc<Mask> {
        let mut words = vec![u32::MAX; vocab_size / 32];
        if !vocab_size.is_multiple_of(32) {
            words.push((1 << (vocab_size % 32)) - 1);
        }
        Arc::new(Mask::base(words))
    }
}

impl Grammar for Anything {
    fn mask(&mut self) -> Arc<Mask> {
        self.0.clone()
    }

    fn known_mask(&mut self) -> Option<Arc<Mask>> {
        Some(self.0.clone())
    }

    fn advance(&mut self, _token: u32) -> bool {
        true
    }

    fn roll_back(&mut self, _tokens: usize) {}

    fn is_terminated(&self) -> bool {
        false
    }

    fn forced_tokens(&mut self, _limit: usize, _out: &mut Vec<u32>) {}

    fn closing_tokens(&mut self, _limit: usize) -> Option<Vec<u32>> {
        None
    }

    fn closes_within(&mut self, _limit: usize) -> bool {
        false
    }

    fn unbound_tokens(&self) -> u32 {
        u32::MAX
    }
}
