"""The engine as an async library."""

import asyncio
import hashlib
import secrets
import time
from array import array
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from pyengine._core import Lane, Stage
from pyengine.actors.actor import ActorRef
from pyengine.actors.frontend import Frontend
from pyengine.actors.request import Generation
from pyengine.chat.answer import ChatGeneration
from pyengine.chat.dialect import Dialect
from pyengine.chat.messages import read_messages
from pyengine.chat.options import ChatOptions, made_options
from pyengine.chat.template import ChatTemplate
from pyengine.chat.tools import Tool, ToolChoice
from pyengine.config import EngineConfig
from pyengine.edits import edit_rules
from pyengine.engine import EngineInfo, Progress
from pyengine.errors import (
    ConfigError,
    ContextLengthError,
    EngineDeadError,
    InvalidGrammarError,
    InvalidRequestError,
    NotReadyError,
    release_frames,
)
from pyengine.grammar.description import Grammar
from pyengine.keywords import RequestKeywords
from pyengine.messages import Report, SamplingRules, Submit
from pyengine.model.folder import model_folder, served_name
from pyengine.placement import Placement, PlacementName, Watcher, placed
from pyengine.sampling import SamplingParams, check_priority
from pyengine.telemetry import Totals
from pyengine.tokenizer import PREDICTED_CHARACTERS, Tokenizer

# As much as the compiler takes; a longer one would crowd the Scheduler's mailbox for nothing.
MAX_GRAMMAR_BYTES = 1 << 20
MAX_TIMEOUT_S = 30 * 24 * 3600


class AsyncEngine:
    """An LLM engine in your asyncio service::

        async with AsyncEngine() as engine:
            async for update in engine.chat([{"role": "user", "content": "Hello!"}]):
                print(update.text, end="")

    Belongs to the loop that started it; its methods are called there. With ``placement="thread"``
    the model runs on a thread of this process: no subprocess, no signal handler. With ``"process"``
    it runs in one of its own, out of reach of what the service does with the GIL; if that process
    dies, another is started and every request goes on where it was.

    Attributes:
        config: What it was built from.
        model_name: The name that the model answers to.
        tokenizer: The model's tokenizer, once started.
        dialect: The model's chat template and chat format, once started.
        ready: Whether requests are taken.
        failure: What made loading fail, or killed the engine.
        dead: Set when the engine has died for good.
        recorder: What all parts of the engine do, as spans; may be switched off.
        timeline: The spans of this loop.
    """

    tokenizer: Tokenizer
    dialect: Dialect

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        config: EngineConfig | None = None,
        placement: PlacementName | Placement = "thread",
        **settings: Any,
    ) -> None:
        """Take a ``config``, or a model and settings of :class:`EngineConfig` by name.

        Raises:
            ConfigError: A setting does not exist, or is out of its range.
        """
        if config is not None and (model is not None or settings):
            raise ConfigError("give either a config, or a model and settings")
        if config is None:
            config = _config(model, settings)
        self.config = config
        self.model_name = config.served_name or served_name(config.model)
        self.ready = False
        self.failure: BaseException | None = None
        self.dead = asyncio.Event()
        self._placement = placed(placement) if isinstance(placement, str) else placement
        self.recorder = self._placement.seat().recorder
        self.timeline = self.recorder.timeline(Lane.FRONTEND)
        self._info: EngineInfo | None = None
        self._frontend: Frontend | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closed = False
        self._down = False

    async def start(self, progress: Progress | None = None) -> None:
        """Load the model on a thread and begin to take requests. A second call waits for the first.

        Args:
            progress: Told (bytes loaded, bytes in all); called on the loading thread.

        Raises:
            ModelLoadError: The model cannot be had or read.
        """
        if self._closed:
            raise EngineDeadError("the engine was closed; make a new one")
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(progress))
        await asyncio.shield(self._starting)

    async def _start(self, progress: Progress | None) -> None:
        watcher = Watcher(self._on_down, self._on_up, self._on_death)
        try:
            folder = await asyncio.to_thread(model_folder, self.config.model)
            self.tokenizer = await asyncio.to_thread(Tokenizer.from_folder, folder)
            self.dialect = Dialect(
                self.model_name,
                self.tokenizer,
                ChatTemplate.from_folder(folder),
                self.config.chat_format,
            )
            self._info = await self._placement.start(self.config, progress, watcher)
        except BaseException as error:
            # It is kept, and with it would be weights and caches, as locals of those who failed.
            release_frames(error)
            self.failure = error
            raise
        seat = self._placement.seat()
        self._frontend = Frontend(
            seat.index,
            ActorRef(f"frontend-{seat.index}", seat.inbox),
            ActorRef("scheduler", seat.scheduler),
            self.timeline,
            first_request=seat.first_request,
            max_held=self.config.max_waiting,
        )
        self._frontend.open()
        if self._down:
            self._frontend.engine_died()
        self.ready = True

    def _on_down(self) -> None:
        """The engine died and is started anew: what it had goes on afterwards."""
        self._down = True
        if self._frontend is not None:
            self._frontend.engine_died()

    def _on_up(self, info: EngineInfo) -> None:
        """The new engine runs."""
        self._down = False
        self._info = info
        if self._frontend is not None:
            self._frontend.engine_is_back()

    def _on_death(self, error: BaseException) -> None:
        """The engine died: everyone who waits is answered."""
        self.failure = error
        self.ready = False
        self.dead.set()
        if self._frontend is not None:
            self._frontend.fail(EngineDeadError(f"the engine died: {error}"))

    async def close(self) -> None:
        """End every request, stop the actors and free the memory. Idempotent."""
        self._closed = True
        self.ready = False
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._frontend is not None:
            self._frontend.fail(EngineDeadError("the engine was closed"))
        await self._placement.close()
        if self._frontend is not None:
            self._frontend.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def info(self) -> EngineInfo:
        """Context length, vocabulary size and KV blocks.

        Raises:
            NotReadyError: The model is still being loaded.
        """
        self._running()
        assert self._info is not None
        return self._info

    @property
    def max_context(self) -> int:
        """Longest prompt and answer together, in tokens."""
        return self.info.max_context

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        tenant: str | None = None,
        cache_salt: str | None = None,
        timeout: float | None = None,
        grammar: Grammar | None = None,
        close_grammar: bool = False,
        prediction: str | Sequence[int] | None = None,
    ) -> Generation:
        """Continue ``prompt``: iterate the result for updates, or await it for the whole.

        Args:
            prompt: Text, or token ids.
            params: How tokens are chosen and when to end; None is ``SamplingParams()``.
            priority: Lower runs first; 0 is usual.
            tenant: Whom the request is charged to when tenants share fairly, and whose recent
                answers are drafted from. That is no isolation: tenants whose names are given by
                others can be guessed. Where answers must not touch each other in any way, give
                each its own ``cache_salt``.
            cache_salt: Cached prefixes and recent answers are shared only under the same salt.
            timeout: Seconds after which the request ends with RequestTimeoutError.
            grammar: What the answer must look like; see :mod:`pyengine.grammar`. One that cannot be
                enforced ends the request with InvalidGrammarError.
            close_grammar: End what the grammar has begun within ``max_tokens``, so that the answer
                parses; it may say less than it would have. Where the end begins depends on how
                soon one is found. Only with a grammar, or with tools.
            prediction: Text or token ids that the answer is expected to repeat in parts. Changes
                how fast it comes, not what it is.

        Raises:
            InvalidRequestError: A parameter is out of its range, or the prompt is empty.
            ContextLengthError: Prompt and ``max_tokens`` do not fit the context.
            OverloadedError: The queue is full.
            NotReadyError: The model is still being loaded.
            EngineDeadError: The engine has stopped.
        """
        frontend = self._running()
        params = params or SamplingParams()
        params.validate()
        check_priority(priority)
        description = _description(grammar, close_grammar)
        if timeout is not None and not 0 < timeout <= MAX_TIMEOUT_S:
            raise InvalidRequestError(
                f"'timeout' must be above 0 and at most {MAX_TIMEOUT_S} seconds", param="timeout"
            )
        if isinstance(prompt, str):
            self.timeline.begin()
            self.tokenizer.check_length(prompt, self.max_context)
            prompt = self.tokenizer.encode(prompt)
            self.timeline.lap(Stage.TOKENIZE)
        token_ids = list(prompt)
        max_tokens = self._max_tokens(token_ids, params)
        now = time.monotonic_ns()
        submit = Submit(
            key=frontend.next_key(),
            tokens=array("I", token_ids).tobytes(),
            prompt_length=len(token_ids),
            max_tokens=max_tokens,
            min_tokens=params.min_tokens,
            sampling=SamplingRules(
                params.temperature,
                params.top_k,
                params.top_p,
                params.min_p,
                secrets.randbits(64) if params.seed is None else params.seed % 2**64,
            ),
            stop_token_ids=(
                *(() if params.ignore_eos else self.tokenizer.eos_token_ids),
                *params.stop_token_ids,
            ),
            stop=params.stop,
            include_stop=params.include_stop,
            skip_special_tokens=params.skip_special_tokens,
            priority=priority,
            tenant=_number(tenant),
            cache_salt=_number(cache_salt),
            arrival_ns=now,
            deadline_ns=0 if timeout is None else now + int(timeout * 1e9),
            grammar=description,
            close_grammar=close_grammar,
            prediction=self._prediction(prediction),
            edits=edit_rules(params, self.tokenizer, self.info.vocab_size),
            logprobs=params.logprobs,
        )
        actor = frontend.submit(submit, self.tokenizer.token_bytes)
        ready = None if params.logprobs is None else self.tokenizer.load_bytes
        return Generation(actor, token_ids, frontend.abort, ready)

    def _prediction(self, prediction: str | Sequence[int] | None) -> bytes:
        """The tokens of a prediction, as messages carry them."""
        if prediction is None:
            return b""
        if isinstance(prediction, str):
            # A prediction that is longer than any answer can be is of no use beyond that.
            prediction = prediction[: self.max_context * PREDICTED_CHARACTERS]
            prediction = self.tokenizer.encode(prediction, add_special_tokens=False)
        elif not all(0 <= token < self.info.vocab_size for token in prediction):
            raise InvalidRequestError(
                f"token ids must be from 0 to {self.info.vocab_size - 1}", param="prediction"
            )
        return array("I", prediction[: self.max_context]).tobytes()

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Tool | dict[str, Any]] = (),
        tool_choice: ToolChoice | dict[str, Any] = "auto",
        allowed_tools: Collection[str] | None = None,
        parallel_tool_calls: bool = True,
        grammar: Grammar | None = None,
        reasoning: bool | None = None,
        template_arguments: dict[str, Any] | None = None,
        **options: Unpack[RequestKeywords],
    ) -> ChatGeneration:
        """Answer a conversation, through the model's chat template and in its chat format::

            answer = await engine.chat(messages, grammar=json_schema(City))
            city = parse_answer(answer.text, City)

        Args:
            messages: Role and content each, as in OpenAI's chat completions; an answer's
                :attr:`~pyengine.chat.answer.ChatAnswer.message` is one.
            params: How tokens are chosen and when to end.
            tools: Functions that the model may call, as in OpenAI's chat completions or as Tools.
                Its calls follow their schemas.
            tool_choice: ``none``, ``auto``, ``required``, ``Named(tool)``, or OpenAI's object.
            allowed_tools: Names of those that may be called; None is all of them.
            parallel_tool_calls: Whether several may be called at once.
            grammar: What the text of the answer must look like; reasoning may come before it, and
                calls in its place.
            reasoning: Whether the model thinks first, where its template has a switch for that;
                None leaves it as it is.
            template_arguments: Further variables for the template.
            options: As :meth:`generate` takes them: priority, timeout, prediction and so on.

        Raises:
            InvalidRequestError: The model has no template, or it refuses the messages; or the model
                cannot do what is wanted.
        """
        wanted = made_options(
            tools=tools,
            tool_choice=tool_choice,
            allowed_tools=allowed_tools,
            parallel_tool_calls=parallel_tool_calls,
            grammar=grammar,
            reasoning=reasoning,
            template_arguments=template_arguments,
        )
        text, warnings = self._rendered(messages, wanted)
        plan = self.dialect.plan(text, params or SamplingParams(), wanted)
        token_ids = self._tokens(text)
        generation = self.generate(token_ids, plan.params, grammar=plan.grammar, **options)
        return plan.answer(generation, tuple(warnings))

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[Tool | dict[str, Any]] = (),
        reasoning: bool | None = None,
        template_arguments: dict[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a conversation, ready for the assistant's answer.

        Takes and raises what :meth:`chat` does.
        """
        wanted = made_options(
            tools=tools, reasoning=reasoning, template_arguments=template_arguments
        )
        return self._tokens(self._rendered(messages, wanted)[0])

    def _rendered(
        self, messages: Sequence[dict[str, Any]], wanted: ChatOptions
    ) -> tuple[str, list[str]]:
        self._running()
        self.timeline.begin()
        template = self.dialect.template
        read = read_messages(messages, () if template is None else template.message_keys)
        rendered = self.dialect.render([m for m, _ in read], wanted, [more for _, more in read])
        self.timeline.lap(Stage.TEMPLATE)
        return rendered

    def _tokens(self, text: str) -> list[int]:
        self.timeline.begin()
        self.tokenizer.check_length(text, self.max_context)
        token_ids = self.tokenizer.encode(text, add_special_tokens=False)
        self.timeline.lap(Stage.TOKENIZE)
        return token_ids

    async def report(self) -> dict[str, int]:
        """Blocks free, cached and held, requests running and waiting, and the step counters."""
        return (await self.metrics()).figures

    async def metrics(self) -> Report:
        """All figures, distributions and times, as they were at one moment between two steps."""
        return await self._running().report()

    async def telemetry(self) -> Totals:
        """Where the time went since the engine started; the difference of two is a window."""
        return (await self.metrics()).telemetry

    def abort_frontend(self, index: int, below: int) -> None:
        """End the requests of frontend ``index``, whose process died, with numbers under ``below``.

        For the one who started the engine and those processes; see :mod:`pyengine.http.supervisor`.
        """
        if self._frontend is not None:
            self._frontend.abort_frontend(index, below)

    def forget_answers(self, tenant: str | None = None, *, cache_salt: str | None = None) -> None:
        """Drop the recent answers that ``suffix`` drafts from, of one tenant under one salt.

        What is asked after this call finds none of them; answers that are under way are remembered
        when they end. Requests that named neither tenant nor salt are those of ``None``. To be
        called on the engine's loop.

        Raises:
            InvalidRequestError: A name is no string.
            NotReadyError: The model is still being loaded.
        """
        self._running().forget_answers(_number(tenant), _number(cache_salt))

    async def drained(self) -> None:
        """Wait until no request is left."""
        await self._running().drained()

    def _running(self) -> Frontend:
        frontend = self._frontend
        if self._closed:
            raise EngineDeadError("the engine was closed")
        if frontend is None:
            if self.failure is not None:
                raise EngineDeadError(f"the model could not be loaded: {self.failure}")
            raise NotReadyError("the model is still being loaded; try again in a moment")
        if frontend.failure is not None:
            raise frontend.failure
        return frontend

    def _max_tokens(self, token_ids: Sequence[int], params: SamplingParams) -> int:
        """How many tokens the request may get; refuses what cannot fit."""
        info = self.info
        if not token_ids:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        if not all(0 <= token < info.vocab_size for token in token_ids):
            raise InvalidRequestError(
                f"token ids must be from 0 to {info.vocab_size - 1}", param="prompt"
            )
        if not all(token < info.vocab_size for token in params.stop_token_ids):
            raise InvalidRequestError(
                f"'stop_token_ids' must be from 0 to {info.vocab_size - 1}", param="stop_token_ids"
            )
        room = info.max_context - len(token_ids)
        wanted = room if params.max_tokens is None else params.max_tokens
        if room < 1 or wanted > room:
            asked = f" and {wanted} to generate" if room >= 1 else ""
            raise ContextLengthError(
                f"the context is {info.max_context} tokens; the prompt has {len(token_ids)}{asked}",
                param="max_tokens" if room >= 1 else "prompt",
            )
        return wanted


def _config(model: str | Path | None, settings: dict[str, Any]) -> EngineConfig:
    try:
        return EngineConfig(model=None if model is None else str(model), **settings)
    except TypeError as error:
        raise ConfigError(f"{error}".replace("EngineConfig.__init__() ", "")) from None


def _description(grammar: Grammar | None, close: bool) -> bytes | None:
    """What is compiled; refused where it is too long to be sent."""
    if not isinstance(close, bool):
        raise InvalidRequestError("'close_grammar' must be a bool", param="close_grammar")
    if grammar is None:
        if close:
            raise InvalidRequestError(
                "'close_grammar' needs a grammar to close.", param="close_grammar"
            )
        return None
    if not isinstance(grammar, Grammar):
        raise InvalidRequestError(
            f"'grammar' must be a Grammar, such as json_schema(...), not {type(grammar).__name__}",
            param="grammar",
            code="invalid_type",
        )
    description = grammar.description()
    if len(description) > MAX_GRAMMAR_BYTES:
        raise InvalidGrammarError(
            f"the grammar's description has {len(description)} bytes; "
            f"at most {MAX_GRAMMAR_BYTES} are taken",
            param="grammar",
        )
    return description


def _number(name: str | None) -> int:
    """A stable 64-bit number for a name; 0 for none."""
    if name is None:
        return 0
    if not isinstance(name, str):
        raise InvalidRequestError(f"tenant and cache_salt are strings, not {name!r}")
    encoded = name.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")
