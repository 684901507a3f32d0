//! Requests that wait for their grammar to be compiled, before they enter the queue.

use crate::planner::Planner;
use crate::step::sequence_table::RequestId;
use pyengine_base::error::Result;
use pyengine_grammar::Verdict;
use pyengine_kv_allocator::KvAllocator;
use pyengine_messages::{FinishReason, Message, Notice};

/// The longest notice, in bytes.
const MAX_NOTICE: usize = 4096;

impl Planner {
    /// Asks for the grammar of a request that was just submitted; the request enters the queue once it has it.
    pub(super) fn ask_for_grammar(&mut self, kv: &mut KvAllocator, id: RequestId) -> Result<()> {
        match self.features.grammars.ask(id) {
            Some(verdict) => self.take_verdict(kv, id, verdict),
            None => Ok(()),
        }
    }

    /// Takes the grammars that were compiled meanwhile.
    pub(super) fn collect_grammars(&mut self, kv: &mut KvAllocator) -> Result<()> {
        for (key, verdict) in self.features.grammars.collect() {
            if let Some(id) = self.requests.find(key)
                && self.features.grammars.is_compiling(id)
            {
                self.take_verdict(kv, id, verdict)?;
            }
        }
        Ok(())
    }

    fn take_verdict(&mut self, kv: &mut KvAllocator, id: RequestId, verdict: Verdict) -> Result<()> {
        let request = self.requests.get(id);
        let key = request.key;
        let compiled = match verdict {
            Ok(compiled) => compiled,
            Err(refusal) => {
                self.outbox.beside(&Message::Notice(Notice { key, text: shortened(refusal.message) }))?;
                let reason = if refusal.busy { FinishReason::Overloaded } else { FinishReason::Refused };
                self.finish(kv, id, reason);
                return Ok(());
            }
        };
        if !compiled.warnings().is_empty() {
            let text = shortened(compiled.warnings().join("\n"));
            self.outbox.beside(&Message::Notice(Notice { key, text }))?;
        }
        // A request that goes on after a restart has generated tokens already: the grammar is advanced through them.
        let generated = &request.tokens[request.prompt_length as usize..];
        let left = request.limit.saturating_sub(request.tokens.len() as u32);
        let end = self.features.grammars.start(id, compiled.as_ref(), generated, left);
        self.queue.waiting.push(&request.ticket, &mut self.queue.tenants);
        if let Some(reason) = end {
            let failed = reason == FinishReason::Error;
            let cause = || "the grammar forbids what was generated before a restart".into();
            if let Some(text) = self.features.complaint(id).or_else(|| failed.then(cause)) {
                self.tell(key, text);
            }
            self.finish(kv, id, reason);
        }
        Ok(())
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > MAX_NOTICE {
        let end = (0..=MAX_NOTICE).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
