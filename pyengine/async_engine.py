"""The engine as an async library."""

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self, Unpack, cast, overload

from pyengine._core import Stage, Track
from pyengine.chat.answer_spec import AnswerSpec
from pyengine.chat.content_tokens import Prompt
from pyengine.chat.generation import ChatGeneration
from pyengine.chat.handler import ON_LOOP_SECONDS, ChatHandler, is_small
from pyengine.chat.messages import Message, read_messages
from pyengine.chat.options import ChatOptions, made_options
from pyengine.chat.sandbox import TemplateTimeoutError
from pyengine.chat.tools import Tool, ToolChoice
from pyengine.errors import ConfigError, InvalidRequestError
from pyengine.grammar.description import Grammar
from pyengine.logits_processors import Call, LogitsProcessor
from pyengine.logprobs import TokenLogprob
from pyengine.messages import (
    Report,
    RequestKey,
    encode_abort_frontend,
    encode_forget_answers,
)
from pyengine.model.progress import Progress
from pyengine.model.vectors import VectorSpec, read_vectors
from pyengine.model.weights.folder import fetched, model_folder, served_names
from pyengine.placement import Placement, PlacementName, placed
from pyengine.request.admission import Admission
from pyengine.request.connection import Connection
from pyengine.request.embedding import Embedding, VectorForm
from pyengine.request.generation import Generation
from pyengine.request.generation_config import GenerationConfig, generation_config
from pyengine.request.submission import (
    EmbedKeywords,
    GenerateKeywords,
    RequestBuilder,
    RequestKeywords,
    RequestOptions,
    checked_params,
    number_of,
)
from pyengine.sampling import SamplingParams
from pyengine.settings.config import EngineConfig
from pyengine.telemetry import Totals
from pyengine.tokenizer import OFF_LOOP_CHARACTERS, Tokenizer


class ChatKeywords(RequestKeywords, total=False):
    """The keywords of :meth:`AsyncEngine.chat`."""

    tools: Sequence[Tool | dict[str, Any]]
    tool_choice: ToolChoice | dict[str, Any]
    allowed_tools: Collection[str] | None
    parallel_tool_calls: bool
    grammar: Grammar | None
    reasoning: bool | None
    chat_template: str | None
    template_arguments: dict[str, Any] | None


class AsyncEngine(Connection):
    """An LLM engine in your asyncio service::

        async with AsyncEngine() as engine:
            async for update in engine.chat([{"role": "user", "content": "Hello!"}]):
                print(update.text, end="")

    Belongs to the loop that started it; its methods are called there. With ``placement="thread"``
    the model runs on a thread of this process: no subprocess, no signal handler. With ``"process"``
    it runs in one of its own, out of reach of what the service does with the GIL; if that process
    dies, another is started and every request goes on where it was.

    Attributes:
        config: The configuration of the engine.
        ready: Whether requests are taken.
        failure: The error that made loading fail, or killed the engine; else None.
        dead: An event, set when the engine has died for good.
        info: Context length, vocabulary size and KV blocks, once started.
        model_names: The names that the model answers to.
        tokenizer: The model's tokenizer, once started.
        generation_config: What the model's folder says of sampling, once started.
        handler: The model's chat template and chat format, once started.
        vectors: How the model makes vectors of texts, once started.
        recorder: The spans of all parts of the engine; may be switched off.
        timeline: The spans of this loop.
        admission: Counts requests whose answers are still to be prepared, for an HTTP layer.
    """

    tokenizer: Tokenizer
    handler: ChatHandler
    vectors: VectorSpec
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

        With ``placement="thread"``, ``logits_processors`` may hold objects too; see
        :mod:`pyengine.logits_processors`.

        Raises:
            ConfigError: A setting does not exist, or is out of its range.
        """
        if config is not None and (model is not None or settings):
            raise ConfigError("give either a config, or a model and settings")
        objects: tuple[LogitsProcessor | Call, ...] = ()
        if config is None:
            given = tuple(settings.pop("logits_processors", ()))
            objects = tuple(each for each in given if not isinstance(each, str))
            if given:
                settings["logits_processors"] = tuple(e for e in given if isinstance(e, str))
            config = _config(model, settings)
        if isinstance(placement, str):
            placement = placed(placement, objects)
        elif objects:
            raise ConfigError(
                "'logits_processors' has objects, which this placement does not take: name them "
                "'module:name'",
                param="logits_processors",
            )
        self.model_names = served_names(config)
        self.recorder = placement.frontend_slot().recorder
        slot = placement.frontend_slot()
        self.generation_config = GenerationConfig()
        self.admission = Admission(config, slot.heartbeat, slot.index)
        super().__init__(config, placement, self.recorder.timeline(Track.FRONTEND))

    @property
    def model_name(self) -> str:
        """The first name that the model answers to."""
        return self.model_names[0]

    async def _prepare(self, progress: Progress | None) -> None:
        """Download the model, if need be, and read tokenizer, chat template and chat format."""
        self.config = await asyncio.to_thread(fetched, self.config, progress)
        folder = await asyncio.to_thread(model_folder, self.config.model)
        self.tokenizer = await asyncio.to_thread(Tokenizer.from_folder, folder)
        self.handler = await asyncio.to_thread(
            ChatHandler.from_folder, folder, self.config, self.tokenizer, self.model_name
        )
        if self.config.generation_config == "auto":
            self.generation_config = await asyncio.to_thread(generation_config, folder)
        self.vectors = await asyncio.to_thread(read_vectors, folder)
        self._request_builder = RequestBuilder(self.tokenizer, self.timeline)

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
    def max_context(self) -> int:
        """Longest prompt and answer together, in tokens."""
        return self.info.max_context

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The sampling parameters of a request that gives none: once the engine has started, those
        of the model's generation_config.json, unless the setting ``generation_config`` is ``none``.
        """
        return self.generation_config.params

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> Generation:
        """Continue ``prompt``: iterate the result for updates, or await it for the whole.

        Args:
            prompt: Text, or token ids.
            params: How tokens are chosen and when to end; None is
                :attr:`default_sampling_params`.
            options: As :class:`~pyengine.request.submission.RequestOptions` has them: priority,
                tenant, cache_salt, timeout, grammar, close_grammar, prediction, prompt_logprobs,
                prompt_logprobs_from and logits_processors.

        Raises:
            InvalidRequestError: A parameter is out of its range, or the prompt is empty.
            ContextLengthError: Prompt and ``max_tokens`` do not fit the context.
            OverloadedError: The queue is full.
            NotReadyError: The model is still being loaded.
            EngineDeadError: The engine has stopped.
        """
        self._connected()
        checked = checked_params(params, self.default_sampling_params)
        return self.begin(prompt, checked, RequestOptions(**options))

    def begin(
        self, prompt: str | Sequence[int], params: SamplingParams, options: RequestOptions
    ) -> Generation:
        """As :meth:`generate`, with ``params`` that were validated: once for many answers."""
        frontend = self._connected()
        if options.pooling is None and not self.vectors.generates:
            raise InvalidRequestError(
                f"{self.model_name} has no head for tokens: it gives embeddings only"
            )
        submit = self._request_builder.submit(
            frontend.next_key(), prompt, params, options, self.info
        )
        actor = frontend.submit(submit, self.tokenizer.token_bytes)
        spelled = params.logprobs is not None or options.prompt_logprobs is not None
        ready = self.tokenizer.load_bytes if spelled else None
        return Generation(actor, frontend.abort, ready)

    async def prompt_logprobs(
        self,
        prompt: str | Sequence[int],
        top: int = 0,
        first: int = 0,
        **options: Unpack[EmbedKeywords],
    ) -> list[TokenLogprob | None]:
        """The log-probability of each token of ``prompt`` after those before it; None of the first.

        Args:
            prompt: Text, or token ids.
            top: How many most likely tokens are told in the place of each, 0 to 20.
            first: Tokens up to this one are left out, and are None: what lies before it may come
                from the prefix cache.
            options: As :meth:`generate` takes them: priority, tenant, cache_salt and timeout.

        Raises:
            PyengineError: As :meth:`generate`.
        """
        self._connected()
        token_ids = await self.encode(prompt) if isinstance(prompt, str) else prompt
        asked = RequestOptions(**options, prompt_logprobs=top, prompt_logprobs_from=first)
        scored = (await self.begin(token_ids, _PROMPT_ALONE, asked)).prompt_logprobs
        assert scored is not None
        return scored

    # To a type checker a str is also a sequence of prompts; the first overload that fits counts.
    @overload
    async def embed(  # type: ignore[overload-overlap]
        self,
        prompt: str | Sequence[int],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        **options: Unpack[EmbedKeywords],
    ) -> Embedding: ...
    @overload
    async def embed(
        self,
        prompt: Sequence[str | Sequence[int]],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        **options: Unpack[EmbedKeywords],
    ) -> list[Embedding]: ...
    async def embed(
        self,
        prompt: str | Sequence[int] | Sequence[str | Sequence[int]],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        **options: Unpack[EmbedKeywords],
    ) -> Embedding | list[Embedding]:
        """The vector of a prompt, or of several in one batch, as the model's folder wants it made.

        A folder without ``modules.json`` is of a model that was not trained for vectors
        (``engine.vectors.declared`` is false): its last token's state is what there is.

        Args:
            prompt: Text or token ids, or several of them.
            dimensions: How many numbers, the first of those that there are; None is all.
            normalize: Whether a vector has length 1; None is as the model has it.
            options: As :meth:`generate` takes them: priority, tenant, cache_salt and timeout.

        Raises:
            InvalidRequestError: The model gives no vectors, or a parameter is out of its range.
            PyengineError: As :meth:`generate`.
        """
        self._connected()
        form = VectorForm(dimensions, normalize)
        form.check(self.vectors)
        one = isinstance(prompt, str) or (bool(prompt) and all(isinstance(t, int) for t in prompt))
        prompts = cast("Sequence[str | Sequence[int]]", [prompt] if one else prompt)
        token_ids = [await self.encode(each) if isinstance(each, str) else each for each in prompts]
        asked = RequestOptions(**options, pooling=self.vectors.pooling)
        params = SamplingParams()
        generations = [self.begin(each, params, asked) for each in token_ids]
        embeddings = []
        for generation in generations:
            usage = (await generation).usage
            embeddings.append(Embedding(form.of(generation.vector, self.vectors), usage))
        return embeddings[0] if one else embeddings

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
        chat_template: str | None = None,
        template_arguments: dict[str, Any] | None = None,
        **options: Unpack[RequestKeywords],
    ) -> ChatGeneration:
        """Answer a conversation, through the model's chat template and in its chat format::

            answer = await engine.chat(messages, grammar=json_schema(City))
            city = parse_answer(answer.text, City)

        Args:
            messages: Role and content each, as in OpenAI's chat completions; an answer's
                :attr:`~pyengine.chat.answer.ChatAnswer.message` is one.
            params: As :meth:`generate` takes them.
            tools: Functions that the model may call, as in OpenAI's chat completions or as Tools.
                Its calls follow their schemas.
            tool_choice: ``none``, ``auto``, ``required``, ``Named(tool)``, or OpenAI's object.
            allowed_tools: Names of those that may be called; None is all of them.
            parallel_tool_calls: Whether several may be called at once.
            grammar: The grammar of the answer's text; reasoning may come before it, and calls in
                its place.
            reasoning: Whether the model thinks first, where its template has a switch for that;
                None leaves it as it is.
            chat_template: A template in the place of the model's own, within the same limits.
            template_arguments: Further variables for the template.
            options: As :meth:`generate` takes them: priority, timeout, prediction and so on.

        Raises:
            InvalidRequestError: The model has no template, or it refuses the messages; or the model
                cannot do what is wanted.
        """
        chat_options = made_options(
            tools=tools,
            tool_choice=tool_choice,
            allowed_tools=allowed_tools,
            parallel_tool_calls=parallel_tool_calls,
            grammar=grammar,
            reasoning=reasoning,
            chat_template=chat_template,
            template_arguments=template_arguments,
        )
        handler = self.handler.for_template(chat_template)
        read, others = self._read(messages, handler)
        checked = checked_params(params, self.default_sampling_params)
        self.timeline.begin()
        spec = handler.prepare(read, checked, chat_options, others)
        self.timeline.end_span(Stage.TEMPLATE)
        token_ids = self._chat_tokens(spec.prompt, handler)
        request_options = RequestOptions(grammar=spec.grammar, **options)
        return spec.answer(self.begin(token_ids, spec.params, request_options))

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[Tool | dict[str, Any]] = (),
        reasoning: bool | None = None,
        chat_template: str | None = None,
        template_arguments: dict[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a conversation, ready for the assistant's answer.

        Takes and raises what :meth:`chat` does.
        """
        chat_options = made_options(
            tools=tools,
            reasoning=reasoning,
            chat_template=chat_template,
            template_arguments=template_arguments,
        )
        handler = self.handler.for_template(chat_template)
        read, others = self._read(messages, handler)
        self.timeline.begin()
        prompt, _ = handler.render(read, chat_options, others)
        self.timeline.end_span(Stage.TEMPLATE)
        return self._chat_tokens(prompt, handler)

    def _chat_tokens(self, prompt: Prompt, handler: ChatHandler) -> list[int]:
        """The token ids of a conversation; refuses one that cannot fit the context."""
        self.tokenizer.check_length(prompt.text, self.max_context)
        token_ids = handler.encode(prompt)
        self.timeline.end_span(Stage.TOKENIZE)
        return token_ids

    async def prepare(
        self, messages: Sequence[Message], params: SamplingParams, options: ChatOptions
    ) -> tuple[AnswerSpec, list[int]]:
        """How a conversation is answered, and the token ids of its prompt.

        What is large, and a template that takes its time, leaves the loop to others meanwhile.

        Raises:
            InvalidRequestError: As :meth:`ChatHandler.prepare`.
            ContextLengthError: It is so long that it cannot fit the context.
        """
        handler, spec, start = self.handler, None, self.timeline.begin()
        if options.chat_template is not None:
            handler = await asyncio.to_thread(handler.for_template, options.chat_template)
        if is_small(messages, options):
            with contextlib.suppress(TemplateTimeoutError):
                spec = handler.prepare(messages, params, options, (), ON_LOOP_SECONDS)
        if spec is None:
            spec = await asyncio.to_thread(handler.prepare, messages, params, options)
        self.timeline.span(Stage.TEMPLATE, start)
        prompt, start = spec.prompt, self.timeline.begin()
        self.tokenizer.check_length(prompt.text, self.max_context)
        if prompt.respelled is None and len(prompt.text) < OFF_LOOP_CHARACTERS:
            token_ids = handler.encode(prompt)
        else:
            token_ids = await asyncio.to_thread(handler.encode, prompt)
        self.timeline.span(Stage.TOKENIZE, start)
        return spec, token_ids

    def _read(
        self, messages: Sequence[dict[str, Any]], handler: ChatHandler
    ) -> tuple[list[Message], list[dict[str, Any]]]:
        """The messages of a conversation, and what else each has for the template."""
        self._connected()
        template = handler.template
        read = read_messages(messages, () if template is None else template.message_keys)
        return [message for message, _ in read], [others for _, others in read]

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a prompt; a long text is tokenized on a thread.

        Raises:
            ContextLengthError: It is so long that it cannot fit the context.
        """
        start = self.timeline.begin()
        self.tokenizer.check_length(text, self.max_context)
        token_ids = await self.tokenizer.encode_async(text, add_special_tokens)
        self.timeline.span(Stage.TOKENIZE, start)
        return token_ids

    async def report(self) -> dict[str, int]:
        """KV blocks free, cached and held, requests running and waiting, and the step counters."""
        return (await self.metrics()).stats

    async def metrics(self) -> Report:
        """All counters, distributions and times, taken at one moment between two steps."""
        return await self._connected().report()

    async def telemetry(self) -> Totals:
        """Time of each stage since the engine started; the difference of two is a window."""
        return (await self.metrics()).telemetry

    def abort_frontend(self, index: int, below: int) -> None:
        """End the requests of frontend ``index``, whose process died, with numbers under ``below``.

        For the process that started the engine and those of the frontends; see
        :mod:`pyengine.http.serving.supervisor`.
        """
        if self.frontend is not None:
            self.frontend.send(encode_abort_frontend(RequestKey(index, below)))

    def forget_answers(self, tenant: str | None = None, *, cache_salt: str | None = None) -> None:
        """Drop the recent answers that ``suffix`` drafts from, of one tenant under one salt.

        Requests after this call find none of them; answers that are under way are remembered when
        they end. Requests that named neither tenant nor salt are those of ``None``. Call it on the
        engine's loop.

        Raises:
            InvalidRequestError: A name is no string.
            NotReadyError: The model is still being loaded.
        """
        salt = number_of("cache_salt", cache_salt)
        self._connected().send(encode_forget_answers(number_of("tenant", tenant), salt))

    async def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes but those that running requests hold.

        Returns the number of KV blocks that were cached and are free now.
        """
        return await self._connected().reset_prefix_cache()

    async def drained(self) -> None:
        """Wait until no request is left."""
        await self._connected().drained()


_PROMPT_ALONE = SamplingParams(max_tokens=0)


def _config(model: str | Path | None, settings: dict[str, Any]) -> EngineConfig:
    names = [field.name for field in fields(EngineConfig)]
    for name in settings:
        if name not in names:
            raise ConfigError(f"there is no setting '{name}'; there are: {', '.join(names)}")
    return EngineConfig(model=None if model is None else str(model), **settings)
