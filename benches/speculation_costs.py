"""The most that drafts could gain: by acceptance, and by what the models' steps and prompts take.

The times are those of the models alone, measured on this machine; the engine's own time is in steps
with drafts as in those without.
"""

import statistics
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from pyengine import EngineConfig
from pyengine._core import CpuKernels
from pyengine.model.cpu.model import CpuModel
from pyengine.model.spec import describe, make_layout

CONTEXT = 64  # tokens before those of a step whose time is measured
PROMPT = 128  # tokens of a prompt whose time is measured

# Microseconds by model, rows, and tokens of each row; those of a prompt stand behind no rows.
Times = dict[str, dict[int, dict[int, float]]]


def step_times(numbers_of_rows: Sequence[int], max_draft: int, quick: bool) -> Times:
    """Times of a step of each number of rows, with sampling, and of a prompt."""
    config = EngineConfig(draft_model="demo", mode="server", max_draft=max_draft)
    spec = describe(config)
    assert spec.draft is not None
    kernels, layout = CpuKernels(1), make_layout(config, spec.info)
    times: Times = {}
    for name, of in (("model", spec), ("draft", spec.draft)):
        model = CpuModel(of, layout, kernels)
        times[name] = {0: {PROMPT: step_time(model, 1, PROMPT, 20, logits=1)}}
        for rows in numbers_of_rows:
            each = (1, 2, 3, 5, 1 + max_draft) if name == "model" else (1,)
            repeats = max(5, (200 if quick else 600) // rows)
            times[name][rows] = {count: step_time(model, rows, count, repeats) for count in each}
    return times


def step_time(
    model: CpuModel, rows: int, each: int, repeats: int, logits: int | None = None
) -> float:
    """Microseconds of a step of ``rows`` sequences with ``each`` tokens; the lower quartile.

    The last ``logits`` tokens of each have logits, all of them if None.
    """
    step, tokens, block = model.buffers, rows * each, 16
    logits = logits or each
    pages = -(-(CONTEXT + each) // block)
    places = np.arange(CONTEXT, CONTEXT + each)
    step.header[:] = 0
    step.num_rows = step.num_sampled = rows
    step.num_tokens, step.num_logits = tokens, rows * logits
    step.token_ids[:tokens] = np.arange(tokens) % 1000 + 300
    step.positions[:tokens] = np.tile(places, rows)
    step.page_indices[: rows * pages] = np.arange(rows * pages)
    cells = places % block + np.arange(CONTEXT // block, pages).repeat(block)[:each] * block
    step.slot_mapping[:tokens] = (cells + np.arange(rows)[:, None] * pages * block).ravel()
    step.query_start[: rows + 1] = np.arange(rows + 1) * each
    step.page_indptr[: rows + 1] = np.arange(rows + 1) * pages
    step.kv_length[:rows] = CONTEXT + each
    step.sampling["temperature"][:rows] = 0
    step.logit_start[: rows + 1] = np.arange(rows + 1) * logits
    step.logit_row[: rows * logits] = np.arange(rows).repeat(logits)
    last = np.arange(tokens).reshape(rows, each)[:, -logits:]
    step.logit_token[: rows * logits] = last.ravel()
    step.mask_row[: rows * logits] = -1
    times = []
    for _ in range(repeats):
        start = perf_counter()
        model.forward()
        model.choose()
        model.sampler.verify(rows)
        times.append((perf_counter() - start) * 1e6)
    return statistics.quantiles(times, n=4)[0]


def expected(times: Times, run: dict[str, Any], draft_model: bool) -> float:
    """The speedup that the costs allow, with the drafts of a run and its tokens per row and step.

    Of a row, times a token: the step it is made in, and its part of the prompt. A draft model takes
    a pass for each draft, and computes the prompts of the requests that it drafts for.
    """
    rows, drafts = run["concurrency"], run["drafts_per_step"]
    model, draft = times["model"][rows], times["draft"][rows]
    counts = sorted(model)
    step = float(np.interp(1 + drafts, counts, [model[count] for count in counts]))
    prompt, late = (times[name][0][PROMPT] / PROMPT for name in ("model", "draft"))
    if draft_model:
        step += drafts * draft[1]
        prompt_too = min(1.0, drafts) * late
    else:
        prompt_too = 0.0
    plain = model[1] / rows + run["prompts_per_token"] * prompt
    drafted = step / (rows * run["tokens_per_step"])
    return float(plain / (drafted + run["prompts_per_token"] * (prompt + prompt_too)))
