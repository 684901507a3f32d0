"""The engine as an async library."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self, Unpack

from pyengine._core import Stage, Track
from pyengine.chat.generation import ChatGeneration
from pyengine.chat.handler import ChatHandler
from pyengine.chat.messages import read_messages
from pyengine.chat.options import ChatOptions, made_options
from pyengine.chat.template import ChatTemplate
from pyengine.chat.tools import Tool, ToolChoice
from pyengine.engine import EngineInfo
from pyengine.errors import ConfigError
from pyengine.grammar.description import Grammar
from pyengine.messages import Report
from pyengine.model.runner import Progress
from pyengine.model.weights.folder import model_folder, served_name
from pyengine.placement import Placement, PlacementName, placed
from pyengine.request.connection import Connection
from pyengine.request.generation import Generation
from pyengine.request.keywords import RequestKeywords
from pyengine.request.submission import RequestBuilder, checked_params, number_of
from pyengine.sampling import SamplingParams
from pyengine.settings.config import EngineConfig
from pyengine.telemetry import Totals
from pyengine.tokenizer import Tokenizer


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
        handler: The model's chat template and chat format, once started.
        recorder: What all parts of the engine do, as spans; may be switched off.
        timeline: The spans of this loop.
    """

    tokenizer: Tokenizer
    handler: ChatHandler
    _request_builder: RequestBuilder

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
        placement = placed(placement) if isinstance(placement, str) else placement
        self.recorder = placement.frontend_slot().recorder
        self.timeline = self.recorder.timeline(Track.FRONTEND)
        self._connection = Connection(config, placement, self.timeline)

    async def start(self, progress: Progress | None = None) -> None:
        """Load the model on a thread and begin to take requests. A second call waits for the first.

        Args:
            progress: Told (bytes loaded, bytes in all); called on the loading thread.

        Raises:
            ModelLoadError: The model cannot be had or read.
        """
        await self._connection.start(self._load_texts, progress)

    async def _load_texts(self) -> None:
        """What this side of the engine needs: the tokenizer, the chat template and format."""
        folder = await asyncio.to_thread(model_folder, self.config.model)
        self.tokenizer = await asyncio.to_thread(Tokenizer.from_folder, folder)
        self.handler = ChatHandler(
            self.model_name,
            self.tokenizer,
            ChatTemplate.from_folder(folder),
            self.config.chat_format,
        )
        self._request_builder = RequestBuilder(self.tokenizer, self.timeline)

    async def close(self) -> None:
        """End every request, stop the actors and free the memory. Idempotent."""
        await self._connection.close()

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
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self._connection.ready

    @property
    def failure(self) -> BaseException | None:
        """What made loading fail, or killed the engine."""
        return self._connection.failure

    @property
    def dead(self) -> asyncio.Event:
        """Set when the engine has died for good."""
        return self._connection.dead

    @property
    def info(self) -> EngineInfo:
        """Context length, vocabulary size and KV blocks.

        Raises:
            NotReadyError: The model is still being loaded.
        """
        return self._connection.info

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
        frontend = self._connection.running()
        params = checked_params(params)
        submit = self._request_builder.submit(
            frontend.next_key(),
            prompt,
            params,
            self.info,
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
            timeout=timeout,
            grammar=grammar,
            close_grammar=close_grammar,
            prediction=prediction,
        )
        actor = frontend.submit(submit, self.tokenizer.token_bytes)
        ready = None if params.logprobs is None else self.tokenizer.load_bytes
        return Generation(actor, frontend.abort, ready)

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
        plan = self.handler.plan(text, checked_params(params), wanted)
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
        self._connection.running()
        self.timeline.begin()
        template = self.handler.template
        read = read_messages(messages, () if template is None else template.message_keys)
        rendered = self.handler.render([m for m, _ in read], wanted, [more for _, more in read])
        self.timeline.end_span(Stage.TEMPLATE)
        return rendered

    def _tokens(self, text: str) -> list[int]:
        return self._request_builder.tokens(text, self.info, add_special_tokens=False)

    async def report(self) -> dict[str, int]:
        """Blocks free, cached and held, requests running and waiting, and the step counters."""
        return (await self.metrics()).figures

    async def metrics(self) -> Report:
        """All figures, distributions and times, as they were at one moment between two steps."""
        return await self._connection.running().report()

    async def telemetry(self) -> Totals:
        """Where the time went since the engine started; the difference of two is a window."""
        return (await self.metrics()).telemetry

    def abort_frontend(self, index: int, below: int) -> None:
        """End the requests of frontend ``index``, whose process died, with numbers under ``below``.

        For the process that started the engine and those of the frontends; see
        :mod:`pyengine.http.serving.supervisor`.
        """
        self._connection.abort_frontend(index, below)

    def forget_answers(self, tenant: str | None = None, *, cache_salt: str | None = None) -> None:
        """Drop the recent answers that ``suffix`` drafts from, of one tenant under one salt.

        What is asked after this call finds none of them; answers that are under way are remembered
        when they end. Requests that named neither tenant nor salt are those of ``None``. To be
        called on the engine's loop.

        Raises:
            InvalidRequestError: A name is no string.
            NotReadyError: The model is still being loaded.
        """
        frontend = self._connection.running()
        frontend.forget_answers(number_of("tenant", tenant), number_of("cache_salt", cache_salt))

    async def drained(self) -> None:
        """Wait until no request is left."""
        await self._connection.running().drained()


def _config(model: str | Path | None, settings: dict[str, Any]) -> EngineConfig:
    names = [field.name for field in fields(EngineConfig)]
    for name in settings:
        if name not in names:
            raise ConfigError(f"there is no setting '{name}'; there are: {', '.join(names)}")
    return EngineConfig(model=None if model is None else str(model), **settings)
