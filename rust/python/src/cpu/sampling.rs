//! What is sampled from logits, on Python's buffers: tokens, log-probabilities, and the drafts that agree.

use pyengine_kernels_cpu::sampler::logprobs::{self, Table};
use pyengine_kernels_cpu::sampler::{self, mask};
use pyengine_kernels_cpu::threads::Threads;
use pyo3::prelude::*;

use super::step::{CpuRules, bad_step};
use super::tensor::{CpuTensor, by_element, invalid};
use crate::errors::guarded;
use pyengine_base::error::Error;

/// Fills `out[first..first + rows]` from the first `rows` rows of `logits`.
pub(crate) fn sample(
    threads: &Threads,
    rules: &CpuRules,
    logits: &CpuTensor,
    out: &CpuTensor,
    first: usize,
    rows: usize,
) -> Result<(), Error> {
    let vocabulary = logits.width();
    let end = first.saturating_add(rows);
    let rules = rules.view()?;
    rules.check(first, end, vocabulary).map_err(bad_step)?;
    let tokens = out.write::<i32>("out", end, &[logits])?;
    by_element!(logits, T => {
        let logits = logits.read::<T>("logits", rows.saturating_mul(vocabulary))?;
        sampler::sample(threads, logits, vocabulary, &rules, first, &mut tokens[first..]);
        Ok::<_, Error>(())
    })
}

/// Fills `[tokens, logprobs, of_chosen]`, by logits row of the step, for the logits rows `first..first + rows`, from
/// `[wanted, logits, chosen]`.
pub(super) fn top_logprobs(
    threads: &Threads,
    [wanted, logits, chosen]: [&CpuTensor; 3],
    [tokens, logprobs, of_chosen]: [&CpuTensor; 3],
    first: usize,
    rows: usize,
) -> Result<(), Error> {
    let (vocabulary, width) = (logits.width(), tokens.width());
    let end = first.saturating_add(rows);
    let wanted = wanted.read::<i32>("wanted", end)?;
    let picked = chosen.read::<i32>("chosen", end)?;
    let table = Table {
        tokens: tokens.write("tokens", end.saturating_mul(width), &[logits, chosen, logprobs, of_chosen])?,
        logprobs: logprobs.write(
            "logprobs",
            end.saturating_mul(width),
            &[logits, chosen, tokens, of_chosen],
        )?,
        chosen: of_chosen.write("of_chosen", end, &[logits, chosen, tokens, logprobs])?,
        width,
    };
    by_element!(logits, T => {
        let logits = logits.read::<T>("logits", rows.saturating_mul(vocabulary))?;
        logprobs::top_logprobs(threads, logits, vocabulary, wanted, picked, first, rows, table);
        Ok::<_, Error>(())
    })
}

/// Fills `counts`, by sampling row, with how many of its `tokens` count: one, and one more for each leading draft in
/// `token_ids` that is what was sampled in its place.
pub(super) fn verify(
    rules: &CpuRules,
    token_ids: &CpuTensor,
    tokens: &CpuTensor,
    counts: &CpuTensor,
    sampled: usize,
) -> Result<(), Error> {
    let rules = rules.view()?;
    let ids = token_ids.read_all::<i32>("token_ids")?;
    let chosen = tokens.read_all::<i32>("tokens")?;
    rules.check_drafts(sampled, ids.len(), chosen.len()).map_err(bad_step)?;
    let counts = counts.write::<i32>("counts", sampled, &[token_ids, tokens])?;
    sampler::verify::verify(&rules, ids, chosen, counts);
    Ok(())
}

/// For each row the `hash % n`-th of the n tokens that its mask allows; see the stub.
#[pyfunction]
pub(super) fn pick_allowed(
    mask: &Bound<'_, PyAny>,
    words: usize,
    mask_rows: &Bound<'_, PyAny>,
    hashes: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (mask, mask_rows, hashes, out) =
        (CpuTensor::new(mask)?, CpuTensor::new(mask_rows)?, CpuTensor::new(hashes)?, CpuTensor::new(out)?);
    guarded(|| {
        let masks = mask.read_all::<u32>("mask")?;
        let rows = mask_rows.read_all::<i32>("mask_rows")?;
        let keys = hashes.read::<u64>("hashes", rows.len())?;
        let tokens = out.write::<i32>("out", rows.len(), &[&mask, &mask_rows, &hashes])?;
        let count = masks.len().checked_div(words).unwrap_or(0);
        if let Some(row) = rows.iter().find(|&&row| row >= 0 && row as usize >= count) {
            return invalid(format!("there is no mask row {row} among {count}"));
        }
        let mut counted: Vec<Option<mask::Counted<'_>>> = (0..count).map(|_| None).collect();
        for ((token, &row), &hash) in tokens.iter_mut().zip(rows).zip(keys) {
            if let Ok(row) = usize::try_from(row) {
                let counted =
                    counted[row].get_or_insert_with(|| mask::Counted::new(&masks[row * words..][..words]));
                *token = counted.pick(hash).map_or(-1, |token| token as i32);
            }
        }
        Ok::<_, Error>(())
    })
}
