"""What samplers are tested with: steps to sample, exact probabilities, and a test of the two."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine._core import CpuKernels, CpuPenalties, CpuRules, CpuTensor
from pyengine.model.step_fields import sampling_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

# A correct sampler is taken for a wrong one with this chance in each test, and so with less than
# 1e-6 in all of the hundred or so together, whatever seeds are chosen. They are fixed besides.
FALSE_ALARM = 1e-8

RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 5},
    {"top_k": 1},
    {"top_p": 0.7},
    {"top_p": 0.05},
    {"min_p": 0.1},
    {"typical_p": 0.6},
    {"temperature": 1.5, "top_k": 90, "min_p": 0.01, "typical_p": 0.8},
    {"top_n_sigma": 1.5},
    {"temperature": 1.6, "top_n_sigma": 2.5, "top_p": 0.9},
    {"dynatemp_range": 0.6},
    {"temperature": 0.7, "dynatemp_range": 1.2, "dynatemp_exponent": 0.4, "top_k": 50},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"xtc_probability": 1.0, "xtc_threshold": 0.02, "typical_p": 0.9, "temperature": 1.2},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.8, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1.5, "top_k": 90, "top_p": 0.97, "min_p": 0.02},
]


@dataclass
class Step:
    """The part of a step's buffers that a sampler reads; see ``StepBuffers``.

    By default every logits row is a sampling row of its own, at position 7 of seed 0, 1, 2, ...
    """

    rows: int
    lengths: Ints | None = None
    temperature: Any = 1.0
    top_k: Any = 0
    top_p: Any = 1.0
    min_p: Any = 0.0
    typical_p: Any = 1.0
    top_n_sigma: Any = 0.0
    dynatemp_range: Any = 0.0
    dynatemp_exponent: Any = 1.0
    xtc_probability: Any = 0.0
    xtc_threshold: Any = 0.1
    seed: Any = None
    position: Any = 7
    mask: NDArray[np.uint32] | None = None
    mask_row: Any = None
    token_ids: Ints = field(default_factory=lambda: np.zeros(1, np.int32))
    logit_token: Ints | None = None
    # By logits row and token, [logits, vocabulary] each: what divides or multiplies, what is added.
    penalties: tuple[Floats, Floats] | None = None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by their names in the step buffers."""
        lengths = np.ones(self.rows, np.int32) if self.lengths is None else self.lengths
        logits = int(lengths.sum())

        def full(value: Any, dtype: Any, count: int = self.rows) -> NDArray[Any]:
            return np.array(np.broadcast_to(np.asarray(value, dtype), count))

        mask_row = -1 if self.mask is None else np.arange(logits)
        mask = np.zeros((1, 1), np.uint32) if self.mask is None else self.mask
        return {
            "sampling": sampling_rows(
                self.rows,
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                typical_p=self.typical_p,
                top_n_sigma=self.top_n_sigma,
                dynatemp_range=self.dynatemp_range,
                dynatemp_exponent=self.dynatemp_exponent,
                xtc_probability=self.xtc_probability,
                xtc_threshold=self.xtc_threshold,
                seed=np.arange(self.rows) if self.seed is None else self.seed,
            ),
            "sample_position": full(self.position, np.int64),
            "logit_start": np.concatenate([[0], lengths.cumsum()]).astype(np.int32),
            "logit_row": np.repeat(np.arange(self.rows, dtype=np.int32), lengths),
            "logit_token": np.zeros(logits, np.int32)
            if self.logit_token is None
            else self.logit_token,
            "mask_row": full(
                mask_row if self.mask_row is None else self.mask_row, np.int32, logits
            ),
            "mask": mask,
        }


def cpu_rules(arrays: dict[str, NDArray[Any]]) -> CpuRules:
    """The sampling rules of a step, from its arrays by name."""
    return CpuRules(**arrays | {"sampling": arrays["sampling"].view(np.uint32)})


def penalty_arrays(factor: Floats, add: Floats) -> dict[str, NDArray[Any]]:
    """The penalties of a step, by their names in :class:`CpuPenalties`: those that change
    something.
    """
    rows, tokens = np.nonzero((factor != 1) | (add != 0))
    return {
        "start": np.searchsorted(rows, np.arange(len(factor) + 1)).astype(np.int32),
        "token": tokens.astype(np.int32),
        "factor": factor[rows, tokens].astype(np.float32),
        "add": add[rows, tokens].astype(np.float32),
    }


Backend = Callable[[Step, NDArray[Any]], tuple[Ints, Ints]]
"""Samples a step from logits [logits rows, vocabulary]: tokens, and counts of those that hold."""


def on_cpu(step: Step, logits: NDArray[Any], threads: int = 2) -> tuple[Ints, Ints]:
    """The Rust sampler and verifier."""
    arrays = step.arrays()
    rules = cpu_rules(arrays)
    tokens = np.full(len(logits), -7, np.int32)
    counts = np.full(step.rows, -7, np.int32)
    kernels, out = CpuKernels(threads), CpuTensor(tokens)
    if step.penalties is not None:
        arrays = penalty_arrays(*step.penalties)
        penalties = CpuPenalties(**arrays, before=np.zeros(len(arrays["token"]), np.float32))
        logits = logits.copy()
        kernels.apply_penalties(penalties, CpuTensor(logits), 0, len(logits))
    kernels.sample(rules, CpuTensor(logits), out, 0, len(logits))
    kernels.verify(rules, CpuTensor(step.token_ids), out, CpuTensor(counts), step.rows)
    return tokens, counts


def pack(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Masks, uint32 [rows, words], of what is allowed, bool [rows, vocabulary]."""
    padded = np.zeros((len(allowed), -(-allowed.shape[1] // 32) * 32), bool)
    padded[:, : allowed.shape[1]] = allowed
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint32)


def exact(
    logits: NDArray[np.float32],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
    top_n_sigma: float = 0.0,
    dynatemp_range: float = 0.0,
    dynatemp_exponent: float = 1.0,
    xtc_probability: float = 0.0,
    xtc_threshold: float = 0.1,
    allowed: NDArray[np.bool_] | None = None,
) -> Floats:
    """The distribution of one row by its definition, in float64."""
    exact_logits = logits.astype(np.float64)
    if allowed is not None:
        exact_logits = np.where(allowed, exact_logits, -np.inf)
    if top_n_sigma > 0.0:
        least = exact_logits.max() - top_n_sigma * exact_logits[exact_logits > -np.inf].std()
        exact_logits[exact_logits < least] = -np.inf
    if dynatemp_range > 0.0:
        p = np.exp(exact_logits - exact_logits.max())
        p = p[p > 0] / p.sum()
        share = -(p * np.log(p)).sum() / np.log(len(p)) if len(p) > 1 else 0.0
        low = max(0.0, temperature - dynatemp_range)
        high = temperature + dynatemp_range
        temperature = max(low + (high - low) * share**dynatemp_exponent, 1e-30)
    scaled = exact_logits / temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.lexsort((np.arange(len(p)), -p))
    kept = np.zeros(len(p), bool)
    kept[order[: top_k or len(p)]] = True
    p = np.where(kept, p, 0.0)
    p /= p.sum()
    if top_p < 1.0:
        reached = np.cumsum(p[order])
        count = int(np.searchsorted(reached, np.float32(top_p), side="left")) + 1
        p[order[count:]] = 0.0
        p /= p.sum()
    p[p < np.float32(min_p) * p.max()] = 0.0
    p /= p.sum()
    if typical_p < 1.0:
        surprise = -np.log(np.where(p > 0, p, 1.0))
        distance = np.where(p > 0, np.abs(surprise - (p * surprise).sum()), np.inf)
        order = np.argsort(distance, kind="stable")
        count = int(np.searchsorted(np.cumsum(p[order]), np.float32(typical_p), side="left")) + 1
        p[distance > distance[order[:count]].max() + 1e-9] = 0.0
        p /= p.sum()
    if xtc_probability > 0.0:
        order = np.lexsort((np.arange(len(p)), -p))
        likely = int((p >= xtc_threshold).sum())
        excluded = p.copy()
        excluded[order[: max(likely, 1) - 1]] = 0.0
        p = (1 - xtc_probability) * p + xtc_probability * excluded / excluded.sum()
    probabilities: Floats = p / p.sum()
    return probabilities


def p_value(drawn: NDArray[Any], p: Floats) -> float:
    """The chance that draws with the probabilities ``p`` lie as far from them as ``drawn`` does.

    Pearson's chi-square test; ``drawn`` are numbers of cells. 0 where what cannot be was drawn.
    """
    counts = np.bincount(drawn, minlength=len(p))
    if counts[p == 0].any():
        return 0.0
    expected = p * len(drawn)
    # Cells with few draws go together, as the test wants.
    rare = expected < 8
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    if freedom == 0:
        return 1.0
    chi2 = float(((observed - expected) ** 2 / expected).sum())
    halves = torch.tensor([freedom / 2, chi2 / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(*halves))


def assert_drawn_from(drawn: NDArray[Any], p: Floats) -> None:
    """``drawn``, numbers of cells, have the probabilities ``p``."""
    found = p_value(drawn, p)
    assert found > FALSE_ALARM, found


def random_step(random: np.random.Generator, rows: int, vocabulary: int) -> Step:
    """Rules, masks and drafts of all sorts, mixed; every draft is token 0 or 1."""
    lengths = random.integers(1, 4, rows).astype(np.int32)
    logits = int(lengths.sum())
    allowed = (
        random.random((logits, vocabulary)) < random.choice([0.0, 0.003, 0.3, 1.0], logits)[:, None]
    )
    only = random.random(logits) < 0.1
    allowed[only] = False
    allowed[only, random.integers(0, vocabulary, only.sum())] = True
    mask_row = np.where(random.random(logits) < 0.4, random.permutation(logits), -1)
    return Step(
        rows,
        lengths=lengths,
        temperature=random.choice([0.0, 0.3, 1.0, 1.8], rows),
        top_k=random.choice([0, 0, 1, 5, 40, vocabulary - 1, vocabulary], rows),
        top_p=random.choice([1.0, 1.0, 0.0, 0.4, 0.95], rows),
        min_p=random.choice([0.0, 0.0, 0.02, 1.0], rows),
        typical_p=random.choice([1.0, 1.0, 0.2, 0.9], rows),
        top_n_sigma=random.choice([0.0, 0.0, 0.3, 1.0, 2.5], rows),
        dynatemp_range=random.choice([0.0, 0.0, 0.5, 2.0], rows),
        dynatemp_exponent=random.choice([1.0, 0.3, 2.0], rows),
        xtc_probability=random.choice([0.0, 0.5, 1.0], rows),
        xtc_threshold=random.choice([0.0, 0.03, 0.1, 0.5, 0.6], rows),
        seed=random.integers(0, 2**64, rows, dtype=np.uint64),
        position=random.integers(0, 2**40, rows),
        mask=pack(allowed),
        mask_row=mask_row,
        token_ids=random.integers(0, 2, logits + 1).astype(np.int32),
        logit_token=np.arange(logits, dtype=np.int32),
    )


def random_logits(random: np.random.Generator, rows: int, vocabulary: int) -> NDArray[np.float32]:
    """Peaked, flat and rounded ones, with what is no number in some."""
    spread = random.choice([0.0, 0.01, 1.0, 5.0], (rows, 1))
    logits = random.normal(0, 1, (rows, vocabulary)) * spread
    rounded = random.random(rows) < 0.4
    logits[rounded] = np.round(logits[rounded] * 2) / 2
    strange = random.random((rows, vocabulary)) < random.choice([0.0, 0.0, 0.02], (rows, 1))
    logits[strange] = random.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], int(strange.sum()))
    drawn: NDArray[np.float32] = logits.astype(np.float32)
    return drawn


VOCABULARY = 5
LENGTH = 3
SMALL_RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.8},
    {"top_k": 3},
    {"top_p": 0.75},
    {"min_p": 0.2},
    {"typical_p": 0.5},
    {"temperature": 1.2, "top_k": 4, "typical_p": 0.8},
    {"top_n_sigma": 1.1},
    {"dynatemp_range": 0.7, "dynatemp_exponent": 1.5},
    {"xtc_probability": 0.6, "xtc_threshold": 0.15, "temperature": 1.3},
    {"temperature": 1.4, "top_k": 4, "top_p": 0.9, "min_p": 0.05},
]
PREFIXES = sum(VOCABULARY**n for n in range(LENGTH))


class Language:
    """A model of three tokens of a vocabulary of five: a table of logits by what went before.

    Prefixes are numbered by length, then as numbers in base five.
    """

    def __init__(self, seed: int, spread: float = 1.5) -> None:
        random = np.random.default_rng(seed)
        self.logits = random.normal(0, spread, (PREFIXES, VOCABULARY)).astype(np.float32)
        self.allowed = random.random((PREFIXES, VOCABULARY)) < 0.6
        self.allowed[np.arange(PREFIXES), random.integers(0, VOCABULARY, PREFIXES)] = True

    def joint(
        self, rules: Mapping[str, Any], masked: bool, penalties: Mapping[str, Any] | None = None
    ) -> Floats:
        """Exact probabilities of the 125 sequences."""
        logits = self.logits
        if penalties is not None:
            texts = [t for n in range(LENGTH) for t in np.ndindex((VOCABULARY,) * n)]
            factor, add = (
                np.concatenate(
                    [factor_and_bias(np.array([t], np.int32), **penalties)[i] for t in texts]
                )
                for i in (0, 1)
            )
            logits = np.where(logits > 0, logits / factor, logits * factor) + add
        each = [
            exact(row, **rules, allowed=allowed if masked else None)
            for row, allowed in zip(logits, self.allowed, strict=True)
        ]
        joint, first = np.ones(1), 0
        for length in range(LENGTH):
            table = np.array(each[first : first + VOCABULARY**length])
            joint = (joint[:, None] * table).reshape(-1)
            first += VOCABULARY**length
        return joint


def factor_and_bias(
    text: Ints,
    *,
    presence: float = 0.0,
    frequency: float = 0.0,
    repetition: float = 1.0,
    bias: Mapping[int, float] | None = None,
    prompt: tuple[int, ...] = (),
    bad_word: tuple[int, ...] = (),
) -> tuple[Floats, Floats]:
    """What divides, and what is added, after each of ``text`` [n, length]: [n, VOCABULARY] each.

    By their definitions; negative tokens are none.
    """
    counts = (text[:, :, None] == np.arange(VOCABULARY)).sum(axis=1)
    seen = (counts > 0) | np.isin(np.arange(VOCABULARY), prompt)
    add = -presence * (counts > 0) - frequency * counts
    for token, value in (bias or {}).items():
        add[:, token] += value
    if bad_word:
        *before, last = bad_word
        # What stands before the beginning is no token.
        begin = np.array([*[-2] * len(before), *prompt], np.int32)
        whole = np.concatenate([np.tile(begin, (len(text), 1)), text], axis=1)
        end = len(begin) + (text >= 0).sum(axis=1)
        stands = np.ones(len(text), bool)
        for back, token in enumerate(reversed(before), 1):
            stands &= whole[np.arange(len(text)), end - back] == token
        add[stands, last] = -np.inf
    return np.where(seen, repetition, 1.0), add


def prefix_number(tokens: Ints, length: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of :class:`Language` for the first ``length`` of ``tokens`` [n, LENGTH]."""
    number, start = np.zeros(len(tokens), np.int64), np.zeros(len(tokens), np.int64)
    for at in range(LENGTH):
        inside = at < length
        number = np.where(inside, number * VOCABULARY + tokens[:, at], number)
        start += np.where(inside, VOCABULARY**at, 0)
    return start + number


def random_drafts(sequences: int) -> Callable[[int], Ints]:
    """Drafts for :func:`generate` that know nothing of the language."""

    def drafts(step: int) -> Ints:
        random = np.random.default_rng([5, step])
        shape = (sequences, LENGTH)
        some = random.integers(0, 3, shape)
        return np.where(random.random(shape) < 0.8, some, -1).astype(np.int32)

    return drafts


def generate(
    backend: Backend,
    language: Language,
    rules: Mapping[str, Any],
    *,
    masked: bool,
    drafts: Callable[[int], Ints],
    sequences: int,
    penalties: Mapping[str, Any] | None = None,
) -> tuple[NDArray[np.int64], float]:
    """Three tokens of every sequence, in steps of as many as hold.

    Args:
        backend: Samples and verifies.
        language: Its logits and masks.
        rules: By name, one for all or one for each sequence.
        masked: Whether the language's masks apply.
        drafts: Of a step's number: int32 [sequences, LENGTH], a proposal for every position; a
            negative one proposes nothing there and after it.
        sequences: How many; their seeds are 0, 1, 2, ...
        penalties: As :func:`factor_and_bias` takes them.

    Returns:
        The sequences as numbers in base five, and the tokens a step and sequence.
    """
    known = np.zeros((sequences, LENGTH), np.int32)
    length = np.zeros(sequences, np.int64)
    steps, samples = 0, 0
    while (length < LENGTH).any():
        active = np.flatnonzero(length < LENGTH)
        proposal = drafts(steps)[active]
        have = length[active]
        places = np.arange(LENGTH)
        proposed = (places < have[:, None]) | (proposal >= 0)
        # Tokens known and proposed in a row from the front, and one position after them to sample.
        usable = np.minimum(proposed.cumprod(axis=1).sum(axis=1), LENGTH - 1)
        lengths = (usable - have + 1).astype(np.int32)
        text = np.where(places < have[:, None], known[active], np.maximum(proposal, 0))
        text = text.astype(np.int32)
        row = np.repeat(np.arange(len(active)), lengths)
        within = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
        prefix = prefix_number(text[row], (have[row] + within))
        # Of the step's tokens, here the whole text of each row behind a first token.
        ids = np.concatenate([np.full((len(active), 1), -9, np.int32), text], axis=1)
        of_rows: dict[str, Any] = {
            name: np.broadcast_to(rule, sequences)[active] for name, rule in rules.items()
        }
        step = Step(
            len(active),
            lengths=lengths,
            **of_rows,
            seed=active,
            position=11 + have,
            mask=pack(language.allowed[prefix]) if masked else None,
            token_ids=ids.reshape(-1),
            logit_token=(row * (LENGTH + 1) + have[row] + within).astype(np.int32),
        )
        if penalties is not None:
            before = np.where(places < (have[row] + within)[:, None], text[row], -1)
            step.penalties = factor_and_bias(before, **penalties)
        tokens, counts = backend(step, language.logits[prefix])
        starts = lengths.cumsum() - lengths
        for at in range(LENGTH):
            holds = at < counts
            known[active[holds], have[holds] + at] = tokens[starts[holds] + at]
        length[active] += counts
        steps, samples = steps + 1, samples + len(active)
    return known @ (VOCABULARY ** np.arange(LENGTH)[::-1]), sequences * LENGTH / samples
