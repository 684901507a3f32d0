"""A recorded day: what a server was asked for, how long its steps took, and what clients waited.

The file is a trace as Mooncake's, which ``--trace`` reads too, below a heading::

    {"recording": 1, "block": 16, "step_model": {...}, "waits": {...}, ...}
    {"timestamp": 0, "input_length": 52, "output_length": 20, "hash_ids": [0, 1, 2]}
    {"timestamp": 31.8, "input_length": 60, "output_length": 8, "hash_ids": [0, 1, 3], ...}

It has no text and no token: ids of blocks are numbers in the order of their first appearance.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from pyengine.errors import ConfigError
from pyengine.messages import Recorded, RecordedRequest
from pyengine.model.step_fields import SAMPLING_ROW, sampling_rows
from pyengine.model.step_model import StepModel
from pyengine.profiling.observe import MAX_SPANS
from pyengine.profiling.report import ReplayPoint
from pyengine.queues import EngineInfo
from pyengine.settings.choices import Proposer
from pyengine.telemetry.spans import SPAN, Spans

_NEUTRAL = sampling_rows(1)[0]


class RecordAnswer(msgspec.Struct):
    """The answer of ``GET /debug/record``.

    Attributes:
        recorded: What ended since the answer before.
        spans: First and next tokens since the span number that was asked for, packed.
        number: That of the first span that is not among them.
        running: Requests that have not ended.
        drafts: Draft tokens behind right ones alone, and how many of them were right, since the
            engine started.
        speculation: The draft token sources.
        engine: The facts about the engine.
    """

    recorded: Recorded
    spans: bytes
    number: int
    running: int
    drafts: tuple[int, int]
    speculation: tuple[Proposer, ...]
    engine: EngineInfo


class Heading(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a recording.

    Attributes:
        recording: The version of the file.
        block: Tokens of a block of ``hash_ids``.
        seconds: How long it took.
        left_out: Requests that had not ended when it did.
        engine: The engine's facts and limits.
        step_model: The times of its steps; None where none was recorded.
        speculation: Its draft token sources; none where they drafted nothing.
        acceptance: The share of draft tokens that were right.
        waits: What clients saw.
    """

    recording: int = 1
    block: int
    seconds: float
    left_out: int
    engine: EngineInfo
    step_model: StepModel | None
    speculation: tuple[Proposer, ...] = ()
    acceptance: float = 0.0
    waits: ReplayPoint


class Recording:
    """A recording that goes on: each answer of the server is added."""

    def __init__(self, first: RecordAnswer) -> None:
        """Nothing was recorded yet: ``first`` began it."""
        self._first = self._last = first
        self._requests: list[RecordedRequest] = []
        self._steps: list[tuple[int, int, int, int]] = []
        self._spans: list[bytes] = []

    def add(self, answer: RecordAnswer) -> None:
        """Take in an answer.

        Raises:
            ConfigError: Another client took a part of the recording, or the engine was replaced.
        """
        if answer.recorded.since_ns != self._last.recorded.until_ns:
            raise ConfigError(
                "a part of the recording is lost: another client records this server, its engine "
                "was replaced, or this command was too slow"
            )
        self._last = answer
        self._requests += answer.recorded.requests
        self._steps += answer.recorded.steps
        self._spans.append(answer.spans)
        while sum(map(len, self._spans)) > MAX_SPANS * SPAN.itemsize:
            del self._spans[0]

    @property
    def path(self) -> str:
        """Where the server has the next answer."""
        return f"/debug/record?since={self._last.number}"

    def summary(self) -> str:
        """What it has, for its user."""
        running, said = self._last.running, f"{len(self._requests):,} requests"
        return said + (f"; {running:,} had not ended and are left out" if running else "")

    def _drafts(self) -> tuple[int, int]:
        """Draft tokens behind right ones alone, and how many of them were right, meanwhile."""
        reached, right = self._last.drafts
        return reached - self._first.drafts[0], right - self._first.drafts[1]

    def lines(self) -> Iterator[bytes]:
        """The lines of the file."""
        engine, last = self._last.engine, self._last.recorded
        spans: Spans = np.frombuffer(b"".join(self._spans), SPAN)
        begun_ns = self._first.recorded.until_ns
        reached, right = self._drafts()
        heading = Heading(
            block=engine.block_size,
            seconds=(last.until_ns - begun_ns) * 1e-9,
            left_out=self._last.running,
            engine=engine,
            step_model=StepModel.fitted(self._steps, engine.overlap),
            speculation=self._last.speculation if reached else (),
            acceptance=right / max(reached, 1),
            waits=ReplayPoint.of("recorded", spans),
        )
        yield msgspec.json.encode(heading) + b"\n"
        blocks: dict[int, int] = {}
        for request in sorted(self._requests, key=lambda request: request.arrival_ns):
            yield msgspec.json.encode(_line(request, begun_ns, blocks)) + b"\n"


def _line(request: RecordedRequest, begun_ns: int, blocks: dict[int, int]) -> dict[str, Any]:
    """A request of the trace; ``blocks`` has the ids of the blocks so far."""
    row = np.frombuffer(request.sampling, SAMPLING_ROW)[0]
    sampling = {
        name: row[name].item()
        for name in SAMPLING_ROW.names or ()
        if name != "seed" and row[name] != _NEUTRAL[name]
    }
    return {
        # Those that ran when it began are there from the beginning.
        "timestamp": max(request.arrival_ns - begun_ns, 0) / 1e6,
        "input_length": request.prompt_tokens,
        "output_length": request.answer_tokens,
        "hash_ids": [blocks.setdefault(number, len(blocks)) for number in request.prefix],
        "priority": request.priority,
        "sampling": sampling,
        "constrained": request.constrained,
    }
