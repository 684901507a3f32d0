"""An engine's life: its start, its sleep, its adapters, its counters and its end."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Self, Unpack

from pyengine._core import Track
from pyengine.async_engine.adapters import EngineAdapters
from pyengine.async_engine.construction import constructed
from pyengine.async_engine.requests import Requests
from pyengine.chat.handler import ChatHandler
from pyengine.messages import Report
from pyengine.model.progress import Progress
from pyengine.model.vectors import VectorSpec, read_vectors
from pyengine.model.weights.folder import fetched, model_folder, served_names
from pyengine.placement import Placement, PlacementName
from pyengine.queues import EngineInfo
from pyengine.request.adapters import Adapter
from pyengine.request.admission import Admission
from pyengine.request.connection import Connection
from pyengine.request.generation_config import GenerationConfig, generation_config
from pyengine.sampling import SamplingParams
from pyengine.settings.config import EngineConfig
from pyengine.settings.keywords import EngineSettings
from pyengine.telemetry import Totals
from pyengine.tokenizer import Tokenizer


class EngineLife:
    """All of :class:`~pyengine.AsyncEngine` but its requests. Belongs to the loop that started it.

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
        **settings: Unpack[EngineSettings],
    ) -> None:
        """Take a ``config``, or a model and settings of :class:`EngineConfig` by name.

        With ``placement="thread"``, ``logits_processors`` may hold objects too; see
        :mod:`pyengine.logits_processors`.

        Raises:
            ConfigError: A setting does not exist, or is out of its range.
        """
        self.config, self.placement = constructed(model, config, placement, settings)
        self.model_names = served_names(self.config)
        self.generation_config = GenerationConfig()
        self._connect()

    def _connect(self) -> None:
        """Take the queues of the placement, before anything is sent through them."""
        slot = self.placement.frontend_slot()
        self.recorder = slot.recorder
        self.timeline = self.recorder.timeline(Track.FRONTEND)
        self.admission = Admission(self.config, slot.heartbeat, slot.index)
        self.connection = Connection(self.config, self.placement, self.timeline)
        self.dead = self.connection.dead
        self._adapters = EngineAdapters(self.connection, self.model_names)

    async def start(self, progress: Progress | None = None) -> None:
        """Load the model on a thread and begin to take requests. A second call waits for the first.

        Args:
            progress: Called with (bytes loaded, bytes in all) on the loading thread; before that,
                if the model is downloaded, with the bytes of that.

        A process that was forked from the one that made the engine may start it, too, if that
        one has not: it gets queues of its own.

        Raises:
            ModelLoadError: The model cannot be had or read.
            PyengineError: No asyncio loop runs here, or a parent process has started the engine.
        """
        if self.connection.forked:
            self.placement.renew_queues()
            self._connect()
        await self.connection.start(self._read_model, progress)
        for adapter in self.adapters.values():
            await self._adapters.load(adapter)

    async def _read_model(self, progress: Progress | None) -> EngineConfig:
        """Download the model, if need be, and read what its folder says beside its weights."""
        self.config = config = await asyncio.to_thread(fetched, self.config, progress, _check)
        folder = await asyncio.to_thread(model_folder, config.model)
        self.tokenizer = await asyncio.to_thread(Tokenizer.from_folder, folder)
        await self.tokenizer.load_bytes()
        if config.generation_config == "auto":
            self.generation_config = await asyncio.to_thread(generation_config, folder)
        self.vectors = await asyncio.to_thread(read_vectors, folder)
        self.handler = await asyncio.to_thread(
            ChatHandler.from_folder, folder, config, self.tokenizer, self.model_name
        )
        for adapter in await self._adapters.read_configured(config.adapter):
            self._adapters.names.add(adapter)
        self._requests = Requests(
            self.connection,
            self.tokenizer,
            self.timeline,
            self.vectors,
            self.model_name,
            self._adapters.names,
        )
        return config

    async def close(self) -> None:
        """End every request, stop the engine, free its memory. Idempotent."""
        await self.connection.close()

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
    def adapters(self) -> Mapping[str, Adapter]:
        """The adapters that requests may ask for, by name."""
        return self._adapters.names

    async def load_adapter(self, folder: str | Path, name: str | None = None) -> Adapter:
        """Load an adapter in PEFT's format; ``adapter=name`` of a request asks for it from then on.

        A name that is loaded already means the new adapter from then on: requests that run keep
        the old one, and nothing that was computed with it is reused.

        Args:
            folder: With adapter_config.json and adapter_model.safetensors. It must stay: an adapter
                that gave way to others is read again when a request asks for it.
            name: What requests call it; None is the folder's own name.

        Raises:
            AdapterError: The adapter cannot be read, is not supported, or does not fit the model.
        """
        self.connection.connected()
        adapter = await self._adapters.read(folder, name)
        await self._adapters.load(adapter)
        return adapter

    def unload_adapter(self, name: str) -> Adapter:
        """Take an adapter's name away; requests that run keep the adapter. Returns it.

        Raises:
            ModelNotFoundError: There is no such adapter.
        """
        return self._adapters.names.remove(name)

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

    async def report(self) -> dict[str, int]:
        """KV blocks free, cached and held, requests running and waiting, and the step counters."""
        return (await self.metrics()).stats

    async def metrics(self, *, recorded: bool = False) -> Report:
        """All counters, distributions and times, taken at one moment between two steps.

        With ``recorded``, also what ended since the last such call; the first begins a recording.
        """
        return await self.connection.connected().report(recorded=recorded)

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


def _check(config: EngineConfig) -> None:
    """See :func:`pyengine.async_engine.checking.check_model`."""
    from pyengine.async_engine.checking import check_model  # brings NumPy, which servers leave

    check_model(config)
