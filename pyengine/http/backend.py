"""What the endpoint needs of an engine: :class:`pyengine.AsyncEngine` has this shape."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from pyengine._core import Recorder, Timeline
from pyengine.chat.handler import ChatHandler
from pyengine.engine import EngineInfo
from pyengine.grammar import Grammar
from pyengine.messages import Report
from pyengine.request.generation import Generation
from pyengine.sampling import SamplingParams
from pyengine.telemetry import Totals
from pyengine.tokenizer import Tokenizer


class Engine(Protocol):
    """The engine behind the endpoint. All of it is called on the loop that serves."""

    @property
    def model_name(self) -> str:
        """The name that the model answers to."""

    @property
    def max_context(self) -> int:
        """Longest prompt and answer together, in tokens; once ready."""

    @property
    def info(self) -> EngineInfo:
        """What was settled as it started; once ready."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; once ready."""

    @property
    def handler(self) -> ChatHandler:
        """The model's chat template and chat format; once ready."""

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
        grammar: Grammar | None,
        close_grammar: bool,
        prediction: Sequence[int] | None,
    ) -> Generation:
        """Continue ``prompt``; refuses what is out of range or cannot fit."""
