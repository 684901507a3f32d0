"""The kernels from logits to tokens: penalties, sampling, verification, the likeliest tokens."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from benches.gpu.cases import Case, Make, by
from benches.gpu.floors import Shape
from benches.gpu.part import Bench
from benches.gpu.timing import Work
from pyengine._core import step_numbers
from pyengine.kernels.sampling import reference as sampling_reference
from pyengine.kernels.sampling import sample as sampling
from pyengine.kernels.sampling.inputs import SamplingInputs
from pyengine.model.step_fields import sampling_rows

ROWS = (1, 64, 256)
RULES: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-p 0.9": {"temperature": 0.8, "top_p": 0.9},
}
EDITS = 64
TOP = 20


def sampling_cases(bench: Bench, shape: Shape) -> Iterator[Case]:
    """All of them."""
    rows = (1, 2) if bench.tiny else ROWS
    dtype = torch.bfloat16 if bench.cuda else torch.float32
    for count in rows:
        logits = torch.randn(count, shape.vocabulary, device=bench.device).mul_(3).to(dtype)
        for name, rules in RULES.items():
            yield sample_case(bench, name, rules, logits)
        yield top_case(bench, logits)
        yield penalty_case(bench, logits)
    for count in rows:
        yield verify_case(bench, count, 4)


def inputs(bench: Bench, rows: int, each: int, **rules: float) -> SamplingInputs:
    """The sampling fields of a step: ``rows`` rows of ``each`` logits rows."""
    logits = rows * each
    arrays: dict[str, Any] = {
        "sampling": sampling_rows(rows, seed=np.arange(rows), **rules),
        "sample_position": np.full(rows, 7, np.int64),
        "logit_start": np.arange(0, logits + 1, each, dtype=np.int32),
        "logit_row": np.arange(rows, dtype=np.int32).repeat(each),
        "logit_token": np.arange(logits, dtype=np.int32),
        "mask_row": np.full(logits, -1, np.int32),
        "mask": np.zeros((1, 1), np.uint32),
    }
    return SamplingInputs.from_numpy(arrays, bench.device)


def sample_case(bench: Bench, name: str, rules: dict[str, float], logits: torch.Tensor) -> Case:
    """Choose a token of each row: every logit is read once at least."""
    rows = len(logits)
    step = inputs(bench, rows, 1, **rules)
    tokens = torch.zeros(rows, dtype=torch.int32, device=bench.device)
    made: dict[str, Make]
    if name == "greedy":
        made = {
            kind: partial(_one, call, (step, logits, tokens))
            for kind, call in by(bench, "sampling.greedy", "greedy").items()
        }
        if bench.cuda:
            made["torch"] = partial(_one, of_torch, (logits, rules))
    elif bench.cuda:
        scratch = sampling.SamplingScratch.for_rows(rows, logits.shape[1], bench.device)
        made = {
            "triton": partial(_one, sampling.sample, (step, logits, tokens, 0, scratch)),
            "torch": partial(_one, of_torch, (logits, rules)),
        }
    else:
        made = {"torch": partial(_one, sampling_reference.sample, (step, logits, tokens))}
    return Case("sample", f"{rows} rows, {name}", made, read=logits.nbytes)


def of_torch(logits: torch.Tensor, rules: dict[str, float]) -> torch.Tensor:
    """Tokens by torch's own operators, as a plain program has them."""
    if rules["temperature"] == 0:
        return logits.argmax(-1)
    probabilities = (logits.float() / rules["temperature"]).softmax(-1)
    if "top_p" in rules:
        probabilities, order = probabilities.sort(-1, descending=True)
        outside = probabilities.cumsum(-1) - probabilities >= rules["top_p"]
        probabilities = probabilities.masked_fill(outside, 0)
    # An exponential race, as multinomial would wait for the device.
    chosen = (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)
    return order.gather(-1, chosen[:, None]) if "top_p" in rules else chosen


def of_flashinfer(flashinfer: Any, logits: torch.Tensor) -> object:
    """A token of each row; of the logits as they are, for there it takes no temperature."""
    return flashinfer.sampling_from_logits(logits, seed=1, offset=0)


def top_p_of_flashinfer(flashinfer: Any, logits: torch.Tensor) -> object:
    """A token of each row, after softmax."""
    probabilities = flashinfer.softmax(logits, temperature=0.8)
    return flashinfer.top_p_sampling_from_probs(probabilities, 0.9, seed=1, offset=0)


def flashinfer_cases(bench: Bench, shape: Shape) -> Iterator[Case]:
    """FlashInfer's sampling, whose seeds are not ours; last, for it may compile for a while."""
    for rows in ROWS:
        logits = torch.randn(rows, shape.vocabulary, device=bench.device).mul_(3)
        for name, call in {"temperature": of_flashinfer, "top-p 0.9": top_p_of_flashinfer}.items():

            def make(
                call: Callable[[Any, torch.Tensor], object] = call, logits: torch.Tensor = logits
            ) -> Sequence[Work]:
                return [partial(call, import_module("flashinfer.sampling"), logits)]

            yield Case("sample", f"{rows} rows, {name}", {"flashinfer": make}, read=logits.nbytes)


def top_case(bench: Bench, logits: torch.Tensor) -> Case:
    """The likeliest tokens of each row with their log-probabilities."""
    rows = len(logits)
    like: dict[str, Any] = {"device": bench.device}
    top = min(TOP, logits.shape[1])
    arguments = (
        logits,
        torch.zeros(rows, dtype=torch.int32, **like),
        torch.zeros(rows, top, dtype=torch.int32, **like),
        torch.zeros(rows, top, **like),
        torch.zeros(rows, **like),
    )
    made: dict[str, Make] = {
        name: partial(_one, call, arguments)
        for name, call in by(bench, "sampling.top_logprobs", "top_logprobs").items()
    }
    if bench.cuda:
        made["torch"] = partial(_one, lambda: logits.float().log_softmax(-1).topk(top), ())
    return Case("top_logprobs", f"{rows} rows, {top} each", made, read=logits.nbytes)


def penalty_case(bench: Bench, logits: torch.Tensor) -> Case:
    """Penalties and bias: some tokens of each row."""
    rows, vocabulary = logits.shape
    penalties = rows * EDITS
    like: dict[str, Any] = {"device": bench.device}
    start = torch.arange(0, penalties + 1, EDITS, dtype=torch.int32, **like)
    # Apart from each other, as tokens are; each once in a row.
    token = (torch.arange(penalties, **like) * 7919 % vocabulary).to(torch.int32)
    factor, add = torch.full((penalties,), 1.1, **like), torch.zeros(penalties, **like)
    made: dict[str, Make] = {
        name: partial(_one, call, (logits.float(), start, token, factor, add))
        for name, call in by(bench, "sampling.penalties", "apply_penalties").items()
    }
    # Three numbers of each penalty, and its logit there and back.
    return Case("penalty", f"{rows} rows, {EDITS} each", made, copied=penalties * 20)


def verify_case(bench: Bench, rows: int, drafts: int) -> Case:
    """Compare drafts with samples: a few numbers of each."""
    each = 1 + drafts
    step = inputs(bench, rows, each)
    like: dict[str, Any] = {"dtype": torch.int32, "device": bench.device}
    header = torch.zeros(len(step_numbers()), dtype=torch.int64, device=bench.device)
    header[step_numbers()["num_sampled"]] = rows
    ids = torch.arange(rows * each + 1, **like)
    tokens = torch.arange(1, rows * each + 1, **like)  # every draft is right
    sequence = torch.arange(rows, **like)
    counts, last = torch.zeros(rows, **like), torch.zeros(rows, **like)
    arguments = (step, header, ids, tokens, sequence, counts, torch.zeros_like(tokens), last)
    made: dict[str, Make] = {
        name: partial(_one, call, arguments)
        for name, call in by(bench, "sampling.verify", "verify").items()
    }
    return Case("verify", f"{rows} rows, {drafts} drafts", made, copied=16 * rows * each)


def _one(call: Callable[..., object], arguments: tuple[Any, ...]) -> Sequence[Work]:
    return [partial(call, *arguments)]
