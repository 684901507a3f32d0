"""Workloads: requests of given lengths, at a rate or at once, or a trace of arrivals and lengths.

Two kinds of trace are read:

* CSV with a header ``TIMESTAMP,ContextTokens,GeneratedTokens`` (Azure's LLM inference traces);
* JSON lines with ``timestamp`` (ms), ``input_length``, ``output_length`` and, where prefixes are
  shared, ``hash_ids``: one id for each block of 512 tokens (Mooncake's traces). Equal ids give
  equal blocks of tokens. A recording (:mod:`pyengine.profiling.recording`) says in its first line
  how long its blocks are, and of each request how it was answered.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ConfigError

HASHED_BLOCK = 512
# Sets seeds of blocks apart from those of requests.
_OF_BLOCKS = 1
# Tokens that mean something in every tokenizer lie above this and below the vocabulary's size.
_FIRST_TOKEN = 4


@dataclass(frozen=True)
class Job:
    """One request.

    Attributes:
        arrival_s: Seconds from the beginning.
        prompt: Token ids.
        answer_tokens: How many tokens it gets.
        priority: As requests have it.
        sampling: Sampling parameters by name, without lengths.
        constrained: Whether a grammar constrains the answer.
    """

    arrival_s: float
    prompt: list[int]
    answer_tokens: int
    priority: int = 0
    sampling: dict[str, Any] = field(default_factory=dict)
    constrained: bool = False


@dataclass(frozen=True)
class Workload:
    """Requests in the order of their arrival.

    Attributes:
        name: What it is, for the report.
        jobs: The requests.
        clipped: How many were shortened to what the context takes.
    """

    name: str
    jobs: list[Job]
    clipped: int = 0


def tokens(seed: int | tuple[int, ...], count: int, vocab_size: int) -> list[int]:
    """``count`` token ids that depend on ``seed`` alone."""
    span = max(vocab_size - _FIRST_TOKEN, 1)
    made: NDArray[np.int64] = np.random.default_rng(seed).integers(0, span, count)
    ids: list[int] = (made + min(_FIRST_TOKEN, vocab_size - 1)).tolist()
    return ids


def arrivals(
    count: int,
    *,
    rate: float | None = None,
    prompt_tokens: int,
    answer_tokens: int,
    vocab_size: int,
    seed: int = 0,
) -> list[Job]:
    """``count`` requests, no two prompts alike.

    Args:
        count: How many.
        rate: A second, as a Poisson process: gaps are exponential. None sends all at once.
        prompt_tokens: The length of each prompt.
        answer_tokens: The length of each answer.
        vocab_size: Token ids are below this.
        seed: The seed of gaps and tokens.
    """
    gaps = np.zeros(count)
    if rate is not None:
        gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    return [
        Job(float(at), tokens(seed * count + number, prompt_tokens, vocab_size), answer_tokens)
        for number, at in enumerate(np.cumsum(gaps) - gaps[0])
    ]


@dataclass(frozen=True)
class _Row:
    arrival_s: float
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...] = ()
    block: int = HASHED_BLOCK
    priority: int = 0
    sampling: dict[str, Any] = field(default_factory=dict)
    constrained: bool = False


@dataclass(frozen=True)
class Trace:
    """Arrivals and lengths from a file.

    Attributes:
        name: The file's.
        rows: Its requests, at least one.
    """

    name: str
    rows: list[_Row]

    def workload(
        self,
        *,
        vocab_size: int,
        max_context: int,
        rate_scale: float = 1.0,
        clip: bool = False,
        seed: int = 0,
    ) -> Workload:
        """The requests as an engine takes them.

        Args:
            vocab_size: Token ids are below this.
            max_context: Longest prompt and answer together.
            rate_scale: Factor by which arrivals come faster.
            clip: Shorten what the context does not take; without, that is an error.
            seed: The seed of the tokens: what two seeds give shares no prefix.

        Raises:
            ConfigError: A request does not fit.
        """
        first = min(row.arrival_s for row in self.rows)
        jobs, clipped = [], 0
        for number, row in enumerate(sorted(self.rows, key=lambda row: row.arrival_s)):
            prompt, answer = _fitted(row, max_context)
            if (prompt, answer) != (row.prompt_tokens, row.answer_tokens):
                if not clip:
                    raise ConfigError(
                        f"request {number} of {self.name} takes {row.prompt_tokens} + "
                        f"{row.answer_tokens} tokens, the context {max_context}; --clip shortens it"
                    )
                clipped += 1
            arrival = (row.arrival_s - first) / rate_scale
            made = _prompt(row, (seed, number), prompt, vocab_size)
            job = Job(arrival, made, answer, row.priority, row.sampling, row.constrained)
            jobs.append(job)
        return Workload(f"trace {self.name}, {rate_scale:g} x its rate", jobs, clipped)


def read_trace(path: Path, limit: int | None = None) -> Trace:
    """The trace in a ``.csv`` or ``.jsonl`` file, see above; of it the first ``limit`` requests.

    Raises:
        ConfigError: The file is no such trace.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = list(islice(_rows(path, lines), limit))
    except OSError as error:
        raise ConfigError(f"cannot read the trace: {error}") from None
    if not rows:
        raise ConfigError(f"{path} holds no request")
    return Trace(path.name, rows)


def _rows(path: Path, lines: Iterable[str]) -> Iterator[_Row]:
    reader = {".csv": _csv_rows, ".jsonl": _json_rows}.get(path.suffix)
    if reader is None:
        raise ConfigError(f"a trace is a .csv or a .jsonl file, not {path.name!r}")
    try:
        yield from reader(lines)
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} is no trace of requests: {error!r}") from None


def _csv_rows(lines: Iterable[str]) -> Iterator[_Row]:
    for row in csv.DictReader(lines):
        moment = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
        yield _Row(moment, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _json_rows(lines: Iterable[str]) -> Iterator[_Row]:
    block = HASHED_BLOCK
    for line in lines:
        if not line.strip():
            continue
        row: dict[str, Any] = json.loads(line)
        if "recording" in row:
            block = int(row["block"])
            continue
        yield _Row(
            row["timestamp"] / 1000,
            int(row["input_length"]),
            int(row["output_length"]),
            tuple(row.get("hash_ids", ())),
            block,
            int(row.get("priority", 0)),
            dict(row.get("sampling", {})),
            bool(row.get("constrained")),
        )


def _fitted(row: _Row, max_context: int) -> tuple[int, int]:
    """Prompt and answer as the context takes them: the answer keeps up to a half of it."""
    answer = max(row.answer_tokens, 1)
    prompt = max(row.prompt_tokens, 1)
    if prompt + answer > max_context:
        answer = min(answer, max(max_context // 2, max_context - prompt))
        prompt = min(prompt, max_context - answer)
    return prompt, answer


def _prompt(row: _Row, number: tuple[int, int], length: int, vocab_size: int) -> list[int]:
    """The tokens: shared by block where the trace names blocks, else no other request's.

    ``number`` is that of the seed, and of the request.
    """
    made: list[int] = []
    for block in row.blocks:
        if len(made) >= length:
            break
        made += tokens((number[0], block, _OF_BLOCKS), row.block, vocab_size)
    if len(made) < length:
        made += tokens(number, length - len(made), vocab_size)
    return made[:length]
