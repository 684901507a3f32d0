"""An engine for the tests of the endpoint: real tokenizer and template, a made-up answer.

It can be held after so many pieces of text, made to fail after so many, and waited upon.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, cast

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from pyengine._core import Recorder, Timeline, Track
from pyengine.actors.heartbeat import Heartbeat
from pyengine.async_engine import AsyncEngine
from pyengine.chat.handler import ChatHandler
from pyengine.chat.template import ChatTemplate
from pyengine.completion import Completion, Outcome, Update, Usage
from pyengine.errors import (
    ContextLengthError,
    InvalidGrammarError,
    InvalidRequestError,
    RequestAbortedError,
)
from pyengine.model.progress import Progress
from pyengine.model.vectors import VectorSpec
from pyengine.request.adapters import Adapter
from pyengine.request.admission import Admission
from pyengine.request.generation import Generation
from pyengine.request.generation_config import GenerationConfig
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams
from pyengine.settings.config import EngineConfig
from pyengine.telemetry.timing import Timing
from pyengine.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ANSWER = 'Grüße 👋! Here is a "quoted" answer,\nwith a second line.'


@cache
def small_tokenizer() -> Tokenizer:
    """A byte-level tokenizer of a few hundred tokens, with ChatML's special tokens."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(["system user assistant hello world " * 4], trainer)
    return Tokenizer(inner, inner.to_str(), [1])


@dataclass(frozen=True)
class Asked:
    """What the endpoint asked of the engine."""

    prompt: list[int]
    params: SamplingParams
    priority: int
    tenant: str | None
    cache_salt: str | None
    grammar: dict[str, Any] | None
    close_grammar: bool
    prediction: list[int] | None


@dataclass
class FakeEngine(AsyncEngine):
    """Answers every prompt with ``answer``, one character a token; or with the next of ``answers``.

    Grammars are not obeyed. One is refused with ``refuse_grammar``, or has ``warnings``.
    """

    model_names: tuple[str, ...] = ("org/fake",)
    config: EngineConfig = field(default_factory=EngineConfig)
    max_context: int = 512
    tokenizer: Tokenizer = field(default_factory=small_tokenizer)
    generation_config: GenerationConfig = field(default_factory=GenerationConfig)
    template: ChatTemplate | None = field(default_factory=lambda: ChatTemplate(CHATML))
    chat_format: str | None = None
    vectors: VectorSpec = field(default_factory=VectorSpec)
    ready: bool = False
    failure: BaseException | None = None
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    waits_for: str | None = None
    admission: Admission = field(
        default_factory=lambda: Admission(EngineConfig(), Heartbeat.make(), 0)
    )
    timeline: Timeline = field(default_factory=lambda: Recorder(1).timeline(Track.FRONTEND))
    answer: str = ANSWER
    answers: list[str] = field(default_factory=list)
    refuse_grammar: str | None = None
    warnings: tuple[str, ...] = ()
    drafts: tuple[int, int] = (0, 0)
    hold_after: int | None = None
    fail_after: tuple[int, Exception] | None = None
    refuse: BaseException | None = None
    asked: list[Asked] = field(default_factory=list)
    running: "set[FakeGeneration]" = field(default_factory=set)
    aborted: int = 0
    closed: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        return {}

    @property
    def handler(self) -> ChatHandler:  # type: ignore[override]
        return ChatHandler(self.model_name, self.tokenizer, self.template, self.chat_format)

    async def start(self, progress: Progress | None = None) -> None:
        self.ready = True

    async def close(self) -> None:
        self.closed = True

    def begin(
        self, prompt: str | Sequence[int], params: SamplingParams, options: RequestOptions
    ) -> Generation:
        if self.refuse is not None:
            raise self.refuse
        if not prompt:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        if not all(0 <= int(token) < self.tokenizer.vocab_size for token in prompt):
            raise InvalidRequestError("a token is out of range", param="prompt")
        if len(prompt) + (params.max_tokens or 1) > self.max_context:
            raise ContextLengthError(
                f"the context is {self.max_context} tokens; the prompt has {len(prompt)}",
                param="prompt",
            )
        self.asked.append(
            Asked(
                [int(token) for token in prompt],
                params,
                options.priority,
                options.tenant,
                options.cache_salt,
                None if options.grammar is None else json.loads(options.grammar.description()),
                options.close_grammar,
                None if options.prediction is None else [int(each) for each in options.prediction],
            )
        )
        return cast("Generation", FakeGeneration(self, len(prompt), params))

    def release(self) -> None:
        """Let everything that is held go on."""
        self.hold_after = None
        self.change()

    def change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that this engine notices."""
        while not condition():
            await self._changed.wait()


class FakeGeneration:
    def __init__(self, engine: FakeEngine, prompt_tokens: int, params: SamplingParams) -> None:
        self._engine = engine
        self._prompt_tokens = prompt_tokens
        answer = engine.answers.pop(0) if engine.answers else engine.answer
        limit = len(answer) if params.max_tokens is None else params.max_tokens
        self._finish: Literal["stop", "length"] = "length"
        self._text = answer[:limit]
        for stop in params.stop:
            if stop in self._text:
                self._text, self._finish = self._text[: self._text.index(stop)], "stop"
        if limit >= len(answer):
            self._finish = "stop"
        self.shown = 0
        self._told: list[Update] = []
        self._ended = self._aborted = False
        engine.running.add(self)
        engine.change()

    def __aiter__(self) -> "FakeGeneration":
        return self

    async def __anext__(self) -> Update:
        if self._ended:
            raise StopAsyncIteration
        engine = self._engine
        await asyncio.sleep(0)
        if engine.refuse_grammar is not None:
            self._end()
            raise InvalidGrammarError(engine.refuse_grammar, param="grammar")
        while engine.hold_after is not None and self.shown >= engine.hold_after:
            if self._aborted:
                break
            await engine._changed.wait()
        if self._aborted:
            self._end()
            raise RequestAbortedError("the request was aborted")
        if engine.fail_after is not None and self.shown >= engine.fail_after[0]:
            self._end()
            raise engine.fail_after[1]
        text = self._text[self.shown : self.shown + 1]
        self.shown += 1
        last = self.shown >= len(self._text)
        if last:
            self._end()
        engine.change()
        tokens = min(self.shown, len(self._text))
        usage = Usage(self._prompt_tokens, self._prompt_tokens // 2, tokens, *engine.drafts)
        warnings = engine.warnings if self.shown == 1 else ()
        finish = self._finish if last else None
        tokens_of = [ord(c) for c in text]
        update = Update(text, tokens_of, finish, None, None, usage, warnings)
        self._told.append(update)
        return update

    def pass_updates(self, sink: Callable[[Update], None]) -> None:
        """All updates wake the task here."""

    def pass_text(self, sink: Callable[[str], None], others: object = None) -> None:
        """As pass_updates."""

    def pass_read(self, reads: object, others: object) -> None:
        """As pass_updates."""

    def take_back(self) -> None:
        """Nothing was given."""

    def __await__(self) -> Iterator[object]:
        return self._whole().__await__()

    async def _whole(self) -> Completion:
        async for _ in self:
            pass
        updates = self._told
        last = updates[-1]
        assert last.finish_reason is not None
        text = "".join(update.text for update in updates)
        warnings = tuple(line for update in updates for line in update.warnings)
        return Completion(text, [], last.finish_reason, None, None, last.usage, warnings)

    @property
    def outcome(self) -> Outcome:
        usage = Usage(self._prompt_tokens, self._prompt_tokens // 2, self.shown)
        return Outcome(self._finish if self._ended else None, usage, Timing(1, 2, 3, 4))

    def abort(self) -> None:
        if not self._ended and not self._aborted:
            self._aborted = True
            self._engine.aborted += 1
            self._engine.running.discard(self)
            self._engine.change()

    def _end(self) -> None:
        self._ended = True
        self._engine.running.discard(self)
        self._engine.change()
