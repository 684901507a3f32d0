"""A device that takes a given time per step and no CPU: everything but the device is measurable.

A step launched at ``t`` ends ``step_ms`` after ``t``, or after the end of the step before it if
that is later, as on a device with one queue::

    launch N      launch N+1             wait N returns      wait N+1 returns
       │              │                        │                    │
       ├──── step N ──┼────────────────────────┼───── step N+1 ─────┤

Each pass of the draft model that it plays adds ``draft_ms`` to a step.

Drafts can be right there: of the draft model that it plays, and, as its text repeats itself, of
n-grams. Imports no torch.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine._core import StepLayout, pick_allowed
from pyengine.errors import AdapterError, ConfigError
from pyengine.model.adapters.peft import AdapterFile
from pyengine.model.batch import NO_TOKEN, BufferRing, StepBuffers
from pyengine.model.progress import Progress
from pyengine.model.runner import ModelInfo
from pyengine.model.spec import describe, make_layout
from pyengine.model.step_model import StepModel, Timed, first_line
from pyengine.settings.config import EngineConfig
from pyengine.telemetry.experts import ExpertLoad

# Where drafts are to be right, the text repeats itself after this many tokens.
PERIOD = 64


class SimulatedStep:
    """A step in flight on the simulated device.

    Attributes:
        start_ns: ``time.monotonic_ns()`` at which the device begins it.
        end_ns: And ends it; never before ``wait`` returns.
        waited_ns: From when to when it waited to sample, its forward pass being over.
    """

    def __init__(self, runner: "SimulatedRunner", index: int, buffers: StepBuffers) -> None:
        """In flight from now on, in set ``index``."""
        self._runner = runner
        self._index = index
        self._buffers = buffers
        self._sampled = False
        self.start_ns = max(time.monotonic_ns(), runner.free_ns)
        self.end_ns = runner.free_ns = self.start_ns + runner.duration_ns(buffers)
        self.waited_ns = (self.end_ns, self.end_ns)

    def sample(self) -> None:
        """Choose the tokens. That takes none of the device's time, but it may wait for it."""
        now = time.monotonic_ns()
        if now > self.end_ns:
            self.waited_ns = (self.end_ns, now)
            self.end_ns = self._runner.free_ns = now
        self._runner.choose(self._buffers)
        self._sampled = True

    def wait(self) -> StepBuffers:
        """The step's buffers with its results, once the step is over; sleeps, never spins.

        Returns some 0.1 ms late (the system's timer slack and the wake-up), more where the cores
        are busy. That does not add up: the step after it has its own end already.
        """
        if not self._sampled:
            raise RuntimeError("the step was not sampled")
        while (left := self.end_ns - time.monotonic_ns()) > 0:
            time.sleep(left * 1e-9)
        self._runner.ring.give_back(self._index)
        return self._buffers


class SimulatedRunner:
    """The simulated device, behind the interface of :class:`pyengine.model.runner.ModelRunner`.

    Which token follows depends on seed and position alone, whatever the batch; rows without
    temperature take seed 0. There are no logits: of the penalties of logits it minds those that
    forbid a token, and of the others nothing comes here. Only the scheduler's thread may call it.

    Attributes:
        overlap: As many steps may run while the next is planned and launched.
        notes: Nothing else was settled.
    """

    notes: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        info: ModelInfo,
        layout: StepLayout,
        *,
        num_blocks: int,
        max_sequences: int,
        step_ms: float,
        tokens: Sequence[int] | NDArray[np.int32],
        eos_rate: float = 0.0,
        acceptance: float = 0.0,
        draft_ms: float = 0.0,
        step_model: StepModel | None = None,
    ) -> None:
        """A device of ``step_ms`` milliseconds a step.

        Args:
            info: The model that it stands in for.
            layout: The layout of the step buffers.
            num_blocks: KV blocks that it pretends to have.
            max_sequences: Slots of the sequence table.
            step_ms: Milliseconds that a step takes.
            tokens: What it says: ids of ordinary tokens.
            eos_rate: Share of positions at which it says the end-of-sequence token instead.
            acceptance: Share of positions at which its draft model is right, and at which it says
                what it said ``PERIOD`` tokens before.
            draft_ms: Milliseconds that each pass of its draft model takes.
            step_model: The times of its steps, in place of ``step_ms``.
        """
        if step_ms < 0:
            raise ConfigError("'simulated_step_ms' must be 0 or more", param="simulated_step_ms")
        self.info = info
        self.overlap = 1 if step_model is None else step_model.overlap
        self._step_model = step_model
        times = f"{step_ms:g} ms a step" if step_model is None else "recorded step times"
        self.device = f"simulated, {times}"
        self.layout = layout
        self.num_blocks = num_blocks
        self._step_ns, self._draft_ns = round(step_ms * 1e6), round(draft_ms * 1e6)
        self._tokens = np.asarray(tokens, np.int32)
        self._eos = info.eos_token_ids[0] if info.eos_token_ids else None
        self._eos_below = np.uint64(round(eos_rate * 2**32)) if self._eos is not None else 0
        self._right_below = np.uint64(round(acceptance * 2**32))
        self._last_token = np.zeros(max_sequences, np.int32)
        self.ring = BufferRing(self.overlap + 1, lambda: StepBuffers(layout))
        self.free_ns = 0

    def set_adapter(self, slot: int, adapter: AdapterFile | None) -> int:
        """There are no weights that it could change."""
        raise AdapterError("the simulated device takes no adapters: it has no weights")

    def expert_load(self) -> list[ExpertLoad]:
        """There are no experts."""
        return []

    @classmethod
    def from_config(
        cls, config: EngineConfig, progress: Progress | None = None
    ) -> "SimulatedRunner":
        """The device of ``config``, speaking the printable tokens of its model's tokenizer.

        It loads no weights, so ``progress`` is never called.
        """
        spec, model = describe(config), config.simulated_step_model
        return cls(
            spec.info,
            make_layout(config, spec.info),
            num_blocks=spec.num_blocks,
            max_sequences=config.limits.max_sequences,
            step_ms=config.simulated_step_ms,
            acceptance=config.simulated_acceptance,
            draft_ms=config.simulated_draft_ms,
            step_model=None if model is None else first_line(Path(model), Timed).step_model,
            tokens=printable_tokens(spec.info),
        )

    def buffers(self) -> StepBuffers:
        """The free set of buffers to plan into."""
        return self.ring.free()

    def launch(self, buffers: StepBuffers) -> SimulatedStep:
        """Queue the step in ``buffers`` behind those before it."""
        index = self.ring.take(buffers)
        step = SimulatedStep(self, index, buffers)
        buffers.feed(self._last_token)
        if buffers.max_device_drafts:
            self._draft(buffers)
        return step

    def duration_ns(self, buffers: StepBuffers) -> int:
        """Nanoseconds that a step takes: its draft model passes once for each draft of a row."""
        model = self._step_model
        step_ns = self._step_ns if model is None else model.duration_ns(buffers)
        return step_ns + self._draft_ns * buffers.max_device_drafts

    def close(self) -> None:
        """Nothing is held."""

    def choose(self, buffers: StepBuffers) -> None:
        """Write the results of a step."""
        rows, count = buffers.num_sampled, buffers.num_logits
        tokens, counts = buffers.tokens, buffers.counts
        tokens[:] = self._words(buffers, count)
        counts[:] = matching(buffers, tokens) if count > rows else 1
        last = buffers.logit_start[:rows] + counts - 1
        self._last_token[buffers.sample_sequence[:rows]] = tokens[last]
        if buffers.num_logprobs_rows:
            buffers.sampled_logprobs[:count] = self._logprob
            self._write_top(buffers.top_tokens[:count], buffers.top_logprobs[:count])
        if pooled := buffers.num_pooled_rows:  # every state is of ones
            buffers.pooled[:pooled] = np.diff(buffers.pool_start[: pooled + 1])[:, None]
        if scored := buffers.num_prompt_logits:
            buffers.prompt_logprobs[:scored] = self._logprob
            self._write_top(
                buffers.prompt_top_tokens[:scored], buffers.prompt_top_logprobs[:scored]
            )

    def _draft(self, buffers: StepBuffers) -> None:
        """Fill in the drafts that the planner leaves to the device's draft model."""
        count = buffers.num_logits
        row = buffers.logit_row[:count]
        drafts = np.flatnonzero(np.arange(count) > buffers.logit_start[row])
        drafts = drafts[buffers.device_drafts[row[drafts]] > 0]
        mixed = self._mixed(buffers, count)
        words = self._said(mixed)[drafts - 1]
        wrong = self._tokens[(mixed[drafts - 1] % np.uint64(97)).view(np.int64) % len(self._tokens)]
        right = _scrambled(mixed[drafts - 1]) >> np.uint64(32) < self._right_below
        buffers.token_ids[buffers.logit_token[drafts]] = np.where(right, words, wrong)

    @property
    def _logprob(self) -> float:
        """The log-probability of each token: all are equally likely."""
        return -float(np.log(len(self._tokens)))

    def _write_top(self, tokens: NDArray[np.int32], logprobs: NDArray[np.float32]) -> None:
        """Fill in the most likely tokens of each row."""
        most = min(tokens.shape[1], len(self._tokens))
        tokens[:] = NO_TOKEN
        tokens[:, :most] = np.sort(self._tokens)[:most]
        logprobs[:] = self._logprob

    def _mixed(self, buffers: StepBuffers, count: int) -> NDArray[np.uint64]:
        """A number for each of the step's logits, from seed and position."""
        row = buffers.logit_row[:count]
        rules = buffers.sampling[row]
        mixed = np.where(rules["temperature"] > 0, rules["seed"], np.uint64(0))
        places = np.arange(count) - buffers.logit_start[row] + buffers.sample_position[row]
        if self._right_below:
            own = _scrambled(mixed ^ places.view(np.uint64)) >> np.uint64(32) >= self._right_below
            places = np.where(own, places, places % PERIOD)
        return _scrambled(mixed ^ places.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15))

    def _said(self, mixed: NDArray[np.uint64]) -> NDArray[np.int32]:
        said: NDArray[np.int32] = self._tokens[
            (mixed % np.uint64(len(self._tokens))).view(np.int64)
        ]
        if self._eos_below and self._eos is not None:
            said[(mixed >> np.uint64(32)) < self._eos_below] = self._eos
        return said

    def _words(self, buffers: StepBuffers, count: int) -> NDArray[np.int32]:
        mixed = self._mixed(buffers, count)
        chosen = self._said(mixed)
        forbidden = forbidden_tokens(buffers, count) if buffers.num_penalties else None
        if forbidden is not None:
            self._avoid(forbidden, buffers, chosen)
        if buffers.num_masks:
            words = buffers.mask.shape[1]
            pick_allowed(buffers.mask.reshape(-1), words, buffers.mask_row[:count], mixed, chosen)
        return chosen

    def _avoid(
        self, forbidden: NDArray[np.int64], buffers: StepBuffers, chosen: NDArray[np.int32]
    ) -> None:
        """Take what is forbidden out of the masks, and in its place say the word after it."""
        rows, tokens = forbidden
        masks = buffers.mask_row[rows]
        bits = np.uint32(1) << (tokens % 32).astype(np.uint32)
        masked = masks >= 0
        np.bitwise_and.at(buffers.mask, (masks[masked], tokens[masked] // 32), ~bits[masked])
        keys, each = rows << 32 | tokens, np.arange(len(chosen)) << 32
        order = np.argsort(self._tokens)
        for _ in range(len(self._tokens)):
            wrong = np.isin(each | chosen, keys)
            if not wrong.any():
                return
            place = order[np.searchsorted(self._tokens, chosen[wrong], sorter=order) % len(order)]
            chosen[wrong] = self._tokens[(place + 1) % len(self._tokens)]
        chosen[np.isin(each | chosen, keys)] = NO_TOKEN


def _scrambled(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # The finalizer of MurmurHash3: neighbours give unrelated numbers.
    mixed = numbers ^ numbers >> np.uint64(33)
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    return mixed


def forbidden_tokens(buffers: StepBuffers, count: int) -> NDArray[np.int64]:
    """int64 [2, n]: rows of the step's ``count`` logits, and tokens that must not come there."""
    starts = buffers.penalty_start[: count + 1].astype(np.int64)
    rows = np.repeat(np.arange(count), np.diff(starts))
    penalties = slice(starts[0], starts[-1])
    never = np.isneginf(buffers.penalty_add[penalties])
    return np.stack([rows[never], buffers.penalty_token[penalties][never].astype(np.int64)])


def matching(buffers: StepBuffers, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """How many of each sampled row's tokens count: up to and with the first not its draft's."""
    rows, count = buffers.num_sampled, buffers.num_logits
    starts, ends = buffers.logit_start[:rows], buffers.logit_start[1 : rows + 1]
    after = np.minimum(buffers.logit_token[:count] + 1, len(buffers.token_ids) - 1)
    right = tokens == buffers.token_ids[after]
    right[ends - 1] = False
    place = np.arange(count) - starts[buffers.logit_row[:count]]
    counts: NDArray[np.int32] = np.minimum.reduceat(np.where(right, count, place), starts) + 1
    return counts.astype(np.int32)


def printable_tokens(info: ModelInfo) -> NDArray[np.int32]:
    """Ids of the tokens that are plain text: printable ASCII, neither special nor the end.

    Read from the folder's tokenizer.json; without one, every id but the end-of-sequence ones.
    """
    path = info.folder / "tokenizer.json"
    if not path.is_file():
        ids = np.arange(info.vocab_size, dtype=np.int32)
        return ids[~np.isin(ids, info.eos_token_ids)]
    tokenizer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    pairs = (
        vocabulary.items()
        if isinstance(vocabulary, dict)
        else ((entry[0], token) for token, entry in enumerate(vocabulary))
    )
    barred = {added["id"] for added in tokenizer.get("added_tokens", ())} | set(info.eos_token_ids)
    # U+0120 and U+2581 stand for a space before a word.
    printable = sorted(
        token
        for text, token in pairs
        if token not in barred
        and token < info.vocab_size
        and (word := text.lstrip("\u0120\u2581"))
        and word.isascii()
        and word.isprintable()
        and not (word.startswith("<") and word.endswith(">"))
    )
    return np.asarray(printable, np.int32)
