"""The adapters of an engine: loaded and unloaded by name."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyengine.errors import AdapterError, ConfigError
from pyengine.request.adapters import Adapter, AdapterNames
from pyengine.request.connection import Connection

if TYPE_CHECKING:
    from pyengine.model.adapters.peft import AdapterFile

logger = logging.getLogger("pyengine")


class EngineAdapters:
    """Loads adapters into an engine, and knows them by name. Belongs to the loop of the engine.

    Attributes:
        names: The adapters that requests may ask for.
    """

    def __init__(self, connection: Connection, model_names: Sequence[str]) -> None:
        self.names = AdapterNames()
        self._connection = connection
        self._model_names = model_names

    async def read(self, folder: str | Path, name: str | None = None) -> Adapter:
        """Read an adapter's folder on a thread, and check it as far as it does without the model.

        Raises:
            AdapterError: The folder has no adapter that is supported, or the name is taken.
        """
        path = _absolute(folder)
        name = path.name if name is None else name
        if not name or ":" in name:
            raise AdapterError(f"an adapter's name must not be empty or have a colon: {name!r}")
        if name in self._model_names:
            raise AdapterError(f"{name!r} is the name of the model; give the adapter another one")
        from pyengine.model.adapters.peft import read_adapter  # brings NumPy, which servers leave

        file = await asyncio.to_thread(read_adapter, path)
        self._warn_of_base(file)
        return Adapter(name, file.digest.hex(), str(path), file.base)

    async def load(self, adapter: Adapter) -> None:
        """Load an adapter into the engine; its name means it from then on.

        Raises:
            AdapterError: It does not fit the model, or there is no room for it.
        """
        digest = bytes.fromhex(adapter.digest)
        await self._connection.connected().load_adapter(digest, adapter.folder)
        self.names.add(adapter)

    async def read_configured(self, settings: Sequence[str]) -> list[Adapter]:
        """Read the adapters that a configuration has as ``name=folder``."""
        adapters = []
        for setting in settings:
            name, _, folder = setting.partition("=")
            try:
                adapters.append(await self.read(folder, name))
            except AdapterError as error:
                raise ConfigError(error.message, param="adapter") from error
        return adapters

    def _warn_of_base(self, file: "AdapterFile") -> None:
        if file.base is None:
            return
        trained, served = Path(file.base).name, {Path(name).name for name in self._model_names}
        if trained.lower() not in {name.lower() for name in served}:
            logger.warning(
                "the adapter in %s was trained on %s; the model is served as %s",
                file.folder,
                file.base,
                ", ".join(self._model_names),
            )


def _absolute(folder: str | Path) -> Path:
    """The folder as the engine's process finds it, wherever that runs."""
    return Path(folder).expanduser().absolute()
