"""The part of an engine that works on texts and token ids: generate, embed, score, report."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self, Unpack, cast, overload

from pyengine._core import Stage, Track
from pyengine.errors import ConfigError, InvalidRequestError
from pyengine.logits_processors import Call, LogitsProcessor
from pyengine.logprobs import TokenLogprob
from pyengine.messages import (
    Report,
    RequestKey,
    encode_abort_frontend,
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
from pyengine.request.options import EmbedKeywords, GenerateKeywords, RequestOptions
from pyengine.request.request import RequestActor
from pyengine.request.submission import RequestBuilder, checked_params
from pyengine.sampling import SamplingParams
from pyengine.settings.config import EngineConfig
from pyengine.telemetry import Totals
from pyengine.tokenizer import OFF_LOOP_CHARACTERS, Tokenizer

Prepared = tuple[Sequence[int], SamplingParams, RequestOptions]
"""A prepared request: token ids, sampling parameters and options."""


class TextEngine(Connection):
    """An engine without chat templates: the base of :class:`pyengine.async_engine.AsyncEngine`,
    which describes its attributes. It belongs to the loop that started it.
    """

    tokenizer: Tokenizer
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
        self._preparations: set[asyncio.Task[RequestActor]] = set()
        super().__init__(config, placement, self.recorder.timeline(Track.FRONTEND))

    @property
    def model_name(self) -> str:
        """The first name that the model answers to."""
        return self.model_names[0]

    async def _prepare(self, progress: Progress | None) -> None:
        """Download the model, if need be, and read what its folder says."""
        self.config = await asyncio.to_thread(fetched, self.config, progress)
        await self._read_folder(await asyncio.to_thread(model_folder, self.config.model))

    async def _read_folder(self, folder: Path) -> None:
        """Read tokenizer, sampling parameters and how vectors are made."""
        self.tokenizer = await asyncio.to_thread(Tokenizer.from_folder, folder)
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
        self._connected()
        checked = checked_params(params, self.default_sampling_params)
        asked = RequestOptions(**options)
        if isinstance(prompt, str) and len(prompt) >= OFF_LOOP_CHARACTERS:
            preparation = self._tokenized(prompt, checked, asked)
            return self._begin_later(
                preparation, spelled=is_spelled(checked, asked.prompt_logprobs)
            )
        return self.begin(prompt, checked, asked)

    def begin(
        self, prompt: str | Sequence[int], params: SamplingParams, options: RequestOptions
    ) -> Generation:
        """As :meth:`generate`, with ``params`` that were validated: once for many answers."""
        frontend = self._connected()
        actor = self._begin(prompt, params, options)
        spelled = is_spelled(params, options.prompt_logprobs)
        ready = self.tokenizer.load_bytes if spelled else None
        return Generation(actor, frontend.abort, ready)

    def _begin(
        self, prompt: str | Sequence[int], params: SamplingParams, options: RequestOptions
    ) -> RequestActor:
        """Begin a request."""
        frontend = self._connected()
        if options.pooling is None and not self.vectors.generates:
            raise InvalidRequestError(
                f"{self.model_name} has no head for tokens: it gives embeddings only"
            )
        submit = self._request_builder.submit(
            frontend.next_key(), prompt, params, options, self.info
        )
        return frontend.submit(submit, self.tokenizer.token_bytes)

    def _begin_later(
        self, preparation: Coroutine[Any, Any, Prepared], *, spelled: bool
    ) -> Generation:
        """Begin a request when its ``preparation`` is done.

        Args:
            preparation: Prepares the request; runs as a task.
            spelled: Whether reading the answer needs the bytes of tokens.
        """
        frontend = self._connected()

        async def begin() -> RequestActor:
            return self._begin(*await preparation)

        task = asyncio.create_task(begin())
        self._preparations.add(task)
        task.add_done_callback(self._preparations.discard)
        return Generation(task, frontend.abort, self.tokenizer.load_bytes if spelled else None)

    async def _tokenized(
        self, prompt: str, params: SamplingParams, options: RequestOptions
    ) -> Prepared:
        """Prepares a request from a text."""
        return await self.encode(prompt), params, options

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

    async def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes but those that running requests hold.

        Returns the number of KV blocks that were cached and are free now.
        """
        return await self._connected().reset_prefix_cache()

    async def drained(self) -> None:
        """Wait until no request is left."""
        while self._preparations:
            await asyncio.wait(self._preparations)
        await self._connected().drained()


_PROMPT_ALONE = SamplingParams(max_tokens=0)


def is_spelled(params: SamplingParams, prompt_logprobs: int | None) -> bool:
    """Whether an answer has log-probabilities, which are read with the bytes of tokens."""
    return params.logprobs is not None or prompt_logprobs is not None


def _config(model: str | Path | None, settings: dict[str, Any]) -> EngineConfig:
    names = [field.name for field in fields(EngineConfig)]
    for name in settings:
        if name not in names:
            raise ConfigError(f"there is no setting '{name}'; there are: {', '.join(names)}")
    return EngineConfig(model=None if model is None else str(model), **settings)
