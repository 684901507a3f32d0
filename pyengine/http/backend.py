"""What the endpoint needs of an engine: :class:`pyengine.AsyncEngine` has this shape."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Literal, Protocol

from pyengine._core import Recorder, Timeline
from pyengine.chat.template import ChatTemplate
from pyengine.messages import FinishReason, Report
from pyengine.sampling import SamplingParams
from pyengine.telemetry import Totals
from pyengine.telemetry.timing import Timing
from pyengine.tokenizer import Tokenizer


class Usage(Protocol):
    """Token counts of a request up to now."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""

    @property
    def cached_tokens(self) -> int:
        """Those of them that came from the prefix cache."""

    @property
    def completion_tokens(self) -> int:
        """Tokens generated."""


class Update(Protocol):
    """What a request got since its last update, everything that had piled up in one."""

    @property
    def text(self) -> str:
        """New text."""

    @property
    def finish_reason(self) -> Literal["stop", "length"] | None:
        """Why the request ended, in its last update."""

    @property
    def usage(self) -> Usage:
        """Counts up to here."""


class Outcome(Protocol):
    """How a request stands, or how it ended."""

    @property
    def finish(self) -> FinishReason | None:
        """Why it ended; None while it runs."""

    @property
    def usage(self) -> Usage:
        """Counts up to here."""

    @property
    def timing(self) -> Timing:
        """Its moments up to here."""


class Generation(Awaitable[Update], Protocol):
    """A running request: iterate it for updates, or await it for the whole answer."""

    def __aiter__(self) -> AsyncIterator[Update]: ...

    @property
    def outcome(self) -> Outcome:
        """How it stands, or how it ended."""

    def abort(self) -> None:
        """Stop; whoever reads gets RequestAbortedError. No harm once it has ended."""


class Engine(Protocol):
    """The engine behind the endpoint. All of it is called on the loop that serves."""

    @property
    def model_name(self) -> str:
        """The name that the model answers to."""

    @property
    def max_context(self) -> int:
        """Longest prompt and answer together, in tokens; once ready."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; once ready."""

    @property
    def template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one; once ready."""

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""

    @property
    def failure(self) -> BaseException | None:
        """What made loading fail, or killed the engine."""

    @property
    def dead(self) -> asyncio.Event:
        """Set when the engine has died for good."""

    @property
    def timeline(self) -> Timeline:
        """Takes the spans of the loop that serves."""

    @property
    def recorder(self) -> Recorder:
        """Holds the spans of all parts of the engine."""

    async def telemetry(self) -> Totals:
        """Where the time went since the engine started."""

    async def report(self) -> dict[str, int]:
        """Requests, blocks and the step counters."""

    async def start(self) -> None:
        """Load the model and begin to take requests."""

    async def close(self) -> None:
        """End every request and free the memory."""

    async def metrics(self) -> Report:
        """All that the engine counts, at one moment."""

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        priority: int,
        tenant: str | None,
        cache_salt: str | None,
    ) -> Generation:
        """Continue ``prompt``; refuses what is out of range or cannot fit."""
