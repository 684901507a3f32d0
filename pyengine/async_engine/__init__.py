"""The engine as an async library: :class:`AsyncEngine`.

::

    chat, generate, embed ──► prompts.py ──► requests.py ──► request.connection ──► the engine
    chat.completions.create ──► endpoints.py ──► pyengine.library
"""

import asyncio
import copy
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, Unpack, cast, overload

from pyengine._core import Track
from pyengine.async_engine.construction import constructed
from pyengine.async_engine.endpoints import (
    Endpoints,
    Namespace,
    load_endpoints,
    with_completions,
)
from pyengine.async_engine.prompts import Conversation, Prompts
from pyengine.async_engine.requests import Prepared, Requests
from pyengine.chat.answer_spec import AnswerSpec
from pyengine.chat.generation import ChatGeneration
from pyengine.chat.handler import ChatHandler
from pyengine.chat.messages import Message
from pyengine.chat.options import ChatKeywords, ChatOptions, made_options
from pyengine.chat.tools import Tool
from pyengine.logprobs import TokenLogprob
from pyengine.messages import Report
from pyengine.model.progress import Progress
from pyengine.model.vectors import VectorSpec, read_vectors
from pyengine.model.weights.folder import fetched, model_folder, served_names
from pyengine.placement import Placement, PlacementName
from pyengine.queues import EngineInfo
from pyengine.request.admission import Admission
from pyengine.request.connection import Connection
from pyengine.request.embedding import Embedding, VectorForm
from pyengine.request.generation import Generation
from pyengine.request.generation_config import GenerationConfig, generation_config
from pyengine.request.options import EmbedKeywords, GenerateKeywords, RequestOptions
from pyengine.request.submission import checked_params
from pyengine.sampling import SamplingParams
from pyengine.settings.config import EngineConfig
from pyengine.telemetry import Totals
from pyengine.tokenizer import OFF_LOOP_CHARACTERS, Tokenizer

_PROMPT_ALONE = SamplingParams(max_tokens=0)


class AsyncEngine:
    """An LLM engine in your asyncio service::

        async with AsyncEngine() as engine:
            async for update in engine.chat([{"role": "user", "content": "Hello!"}]):
                print(update.text, end="")

    Belongs to the loop that started it; its methods are called there. With ``placement="thread"``
    the model runs on a thread of this process: no subprocess, no signal handler. With ``"process"``
    it runs in one of its own, out of reach of what the service does with the GIL; if that process
    dies, another is started and every request goes on where it was.

    ``engine.chat.completions.create(...)``, and the same of ``completions``, ``embeddings`` and
    ``responses``, take and give what OpenAI's client does; see :mod:`pyengine.library`.

    Attributes:
        config: The configuration of the engine.
        placement: Where the engine runs.
        connection: The engine's start, deaths and end.
        dead: An event, set when the engine has died for good.
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
    _requests: Requests

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
        self.config, self.placement = constructed(model, config, placement, settings)
        self.model_names = served_names(self.config)
        slot = self.placement.frontend_slot()
        self.recorder = slot.recorder
        self.timeline = self.recorder.timeline(Track.FRONTEND)
        self.generation_config = GenerationConfig()
        self.admission = Admission(self.config, slot.heartbeat, slot.index)
        self.connection = Connection(self.config, self.placement, self.timeline)
        self.dead = self.connection.dead

    async def start(self, progress: Progress | None = None) -> None:
        """Load the model on a thread and begin to take requests. A second call waits for the first.

        Args:
            progress: Called with (bytes loaded, bytes in all) on the loading thread; before that,
                if the model is downloaded, with the bytes of that.

        Raises:
            ModelLoadError: The model cannot be had or read.
        """
        await self.connection.start(self._read_model, progress)

    async def _read_model(self, progress: Progress | None) -> EngineConfig:
        """Download the model, if need be, and read what its folder says beside its weights."""
        self.config = config = await asyncio.to_thread(fetched, self.config, progress)
        folder = await asyncio.to_thread(model_folder, config.model)
        self.tokenizer = await asyncio.to_thread(Tokenizer.from_folder, folder)
        if config.generation_config == "auto":
            self.generation_config = await asyncio.to_thread(generation_config, folder)
        self.vectors = await asyncio.to_thread(read_vectors, folder)
        self.handler = await asyncio.to_thread(
            ChatHandler.from_folder, folder, config, self.tokenizer, self.model_name
        )
        self._requests = Requests(
            self.connection, self.tokenizer, self.timeline, self.vectors, self.model_name
        )
        return config

    async def close(self) -> None:
        """End every request, stop the engine, free its memory and what it stored. Idempotent."""
        await self.connection.close()
        if "_endpoints" in self.__dict__:
            await self._endpoints.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def sleep(self) -> None:
        """End the engine, so that all its memory is free, until :meth:`wake_up`.

        Requests wait meanwhile, those that run too: they go on with the same tokens. Their prompts
        are computed again then; deadlines are looked at then. Does nothing if it sleeps already.

        Raises:
            ConfigError: The engine runs in this process, which cannot end it.
            PyengineError: It is not started, or has died.
        """
        await self.connection.sleep()

    async def wake_up(self) -> None:
        """Start the engine again after :meth:`sleep`; all requests go on. Slow: loads the model.

        Raises:
            PyengineError: The model cannot be loaded now; the engine sleeps on.
        """
        await self.connection.wake_up()

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self.connection.ready

    @property
    def asleep(self) -> bool:
        """Whether the engine was ended until :meth:`wake_up`; requests wait."""
        return self.connection.asleep

    @property
    def failure(self) -> BaseException | None:
        """The error that made loading fail, or killed the engine; else None."""
        return self.connection.failure

    @property
    def waits_for(self) -> str | None:
        """What requests wait for before the engine works on them; None while it does."""
        return self.connection.waits_for

    @property
    def info(self) -> EngineInfo:
        """Context length, vocabulary size and KV blocks.

        Raises:
            NotReadyError: The model is still being loaded.
        """
        return self.connection.info

    @property
    def model_name(self) -> str:
        """The first name that the model answers to."""
        return self.model_names[0]

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

    @property
    def _prompts(self) -> Prompts:
        return Prompts(self.max_context, self.tokenizer, self.handler, self.timeline)

    @with_completions
    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        params: SamplingParams | None = None,
        **options: Unpack[ChatKeywords],
    ) -> ChatGeneration:
        """Answer a conversation, through the model's chat template and in its chat format::

            answer = await engine.chat(messages, grammar=json_schema(City))
            city = parse_answer(answer.text, City)

        Returns at once. A long conversation, and one with a template of its own, is rendered and
        tokenized on a thread; its errors are raised where the answer is awaited.

        Args:
            messages: Role and content each, as in OpenAI's chat completions; an answer's
                :attr:`~pyengine.chat.answer.ChatAnswer.message` is one.
            params: As :meth:`generate` takes them.
            options: As :class:`~pyengine.chat.options.ChatOptions` has them: tools, tool_choice,
                allowed_tools, parallel_tool_calls, grammar, reasoning, chat_template and
                template_arguments; and as :meth:`generate` takes them: priority, timeout,
                prediction and so on. Calls follow the schemas of their tools. The grammar is that
                of the answer's text; reasoning may come before it, and calls in its place.

        Raises:
            InvalidRequestError: The model has no template, or it refuses the messages; or the model
                cannot do what is wanted.
        """
        self.connection.connected()
        chat_options, others = made_options(options)
        checked = checked_params(params, self.default_sampling_params)
        prompts, spec, conversation = self._prompts, None, None
        if chat_options.chat_template is None:
            conversation = prompts.read(messages)
            spec = prompts.spec_on_loop(conversation, checked, chat_options)
            if spec is not None and (ids := prompts.tokens_on_loop(spec.prompt)) is not None:
                asked = RequestOptions(grammar=spec.grammar, **others)
                return spec.answer(self.begin(ids, spec.params, asked))
        given = copy.copy(messages)  # which the caller may change meanwhile
        specs: list[AnswerSpec] = []

        def read(handler: ChatHandler) -> Conversation:
            return prompts.read(given, handler) if conversation is None else conversation

        async def prepared() -> Prepared:
            made, token_ids = await prompts.prepare(read, checked, chat_options, spec)
            specs.append(made)
            return token_ids, made.params, RequestOptions(grammar=made.grammar, **others)

        scored = others.get("prompt_logprobs")
        generation = self._requests.begin_later(prepared(), checked, scored)
        return ChatGeneration(generation, lambda: specs[0].reading())

    async def prepare(
        self, messages: Sequence[Message], params: SamplingParams, options: ChatOptions
    ) -> tuple[AnswerSpec, list[int]]:
        """How a conversation is answered, and the token ids of its prompt.

        A large conversation, and a template that takes its time, go to a thread.

        Raises:
            InvalidRequestError: As :meth:`ChatHandler.prepare`.
            ContextLengthError: It is so long that it cannot fit the context.
        """
        conversation = messages, ()
        prompts = self._prompts
        spec = prompts.spec_on_loop(conversation, params, options)
        return await prompts.prepare(lambda _: conversation, params, options, spec)

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
        options, _ = made_options(
            {
                "tools": tools,
                "reasoning": reasoning,
                "chat_template": chat_template,
                "template_arguments": template_arguments,
            }
        )
        return self._prompts.render(messages, options)

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> Generation:
        """Continue ``prompt``: iterate the result for updates, or await it for the whole.

        Returns at once. A long text is tokenized on a thread; its errors are raised where the
        result is awaited.

        Args:
            prompt: Text, or token ids.
            params: How tokens are chosen and when to end; None is
                :attr:`default_sampling_params`.
            options: As :class:`~pyengine.request.options.RequestOptions` has them: priority,
                tenant, cache_salt, timeout, grammar, close_grammar, prediction, prompt_logprobs,
                prompt_logprobs_from and logits_processors.

        Raises:
            InvalidRequestError: A parameter is out of its range, or the prompt is empty.
            ContextLengthError: Prompt and ``max_tokens`` do not fit the context.
            OverloadedError: The queue is full.
            NotReadyError: The model is still being loaded.
            EngineDeadError: The engine has stopped.
        """
        self.connection.connected()
        checked = checked_params(params, self.default_sampling_params)
        asked = RequestOptions(**options)
        if not isinstance(prompt, str) or len(prompt) < OFF_LOOP_CHARACTERS:
            return self.begin(prompt, checked, asked)
        text = prompt

        async def tokenized() -> Prepared:
            return await self.encode(text), checked, asked

        return self._requests.begin_later(tokenized(), checked, asked.prompt_logprobs)

    def begin(
        self, prompt: str | Sequence[int], params: SamplingParams, options: RequestOptions
    ) -> Generation:
        """As :meth:`generate`, with ``params`` that were validated: once for many answers."""
        self.connection.connected()
        return self._requests.begin(prompt, params, options)

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
        self.connection.connected()
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
            dimensions: Numbers to keep of each vector, from the first on; None keeps all.
            normalize: Whether a vector has length 1; None is as the model has it.
            options: As :meth:`generate` takes them: priority, tenant, cache_salt and timeout.

        Raises:
            InvalidRequestError: The model gives no vectors, or a parameter is out of its range.
            PyengineError: As :meth:`generate`.
        """
        self.connection.connected()
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

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a prompt; a long text is tokenized on a thread.

        Raises:
            ContextLengthError: It is so long that it cannot fit the context.
        """
        return await self._prompts.encode(text, add_special_tokens=add_special_tokens)

    async def report(self) -> dict[str, int]:
        """KV blocks free, cached and held, requests running and waiting, and the step counters."""
        return (await self.metrics()).stats

    async def metrics(self) -> Report:
        """All counters, distributions and times, taken at one moment between two steps."""
        return await self.connection.connected().report()

    async def telemetry(self) -> Totals:
        """Time of each stage since the engine started; the difference of two is a window."""
        return (await self.metrics()).telemetry

    async def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes but those that running requests hold.

        Returns the number of KV blocks that were cached and are free now.
        """
        return await self.connection.connected().reset_prefix_cache()

    async def drained(self) -> None:
        """Wait until no request is left."""
        self.connection.connected()
        await self._requests.drained()

    completions = Namespace("completions")
    embeddings = Namespace("embeddings")
    responses = Namespace("responses")

    def endpoint(self, name: str) -> Any:
        """The endpoint that OpenAI's client calls ``name``, as the namespaces have it."""
        return self._endpoints.endpoint(name)

    @cached_property
    def _endpoints(self) -> Endpoints:
        return load_endpoints(self)
