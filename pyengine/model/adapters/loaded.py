"""Which adapters a runner has, and in which slots: the least recently used go where room is short.

::

    request with a digest ──► planner: is it loaded? ──no──► wanted ──► LoadedAdapters ──► runner
                                  ▲                                          │
                                  └──────── set_adapter, refuse_adapter ─────┘
"""

from pathlib import Path

from pyengine._core import Planner
from pyengine.errors import AdapterError
from pyengine.model.adapters.peft import read_adapter
from pyengine.model.runner import ModelRunner


class LoadedAdapters:
    """The adapters that the runner has. Belongs to the scheduler's thread."""

    def __init__(self, runner: ModelRunner, planner: Planner, limit_bytes: int) -> None:
        """None is loaded."""
        self._runner = runner
        self._planner = planner
        self._limit = limit_bytes
        self._slots: dict[bytes, tuple[int, int]] = {}  # digest: slot and bytes

    def load_wanted(self) -> bool:
        """Load what requests wait for, and let them go on or end; False if none waits."""
        wanted = self._planner.wanted_adapters()
        for digest, folder in wanted:
            try:
                self.load(digest, folder)
            except AdapterError as error:
                self._planner.refuse_adapter(digest, error.message)
        return bool(wanted)

    def load(self, digest: bytes, folder: str) -> None:
        """Load the adapter with that digest, unless it is loaded.

        Raises:
            AdapterError: The folder has another one by now, it does not fit the model, or there is
                no room for it beside those that requests have.
        """
        if digest in self._slots:
            return
        adapter = read_adapter(Path(folder))
        if adapter.digest != digest:
            raise AdapterError(
                f"{folder} has changed since the adapter was loaded by its name: load it again"
            )
        used = {slot for slot, _ in self._slots.values()}
        slot = next(slot for slot in range(len(used) + 1) if slot not in used)
        size = self._runner.set_adapter(slot, adapter)
        try:
            self._make_room(size)
        except AdapterError:
            self._runner.set_adapter(slot, None)
            raise
        self._slots[digest] = slot, size
        self._planner.set_adapter(digest, slot)

    def _make_room(self, size: int) -> None:
        if size > self._limit:
            raise AdapterError(
                f"the adapter takes {size / 2**20:.1f} MiB; 'adapter_memory_mib' allows "
                f"{self._limit >> 20} for all"
            )
        idle = iter(self._planner.idle_adapters())
        while size + sum(taken for _, taken in self._slots.values()) > self._limit:
            digest = next(idle, None)
            if digest is None:
                raise AdapterError(
                    f"requests have all loaded adapters, which take what 'adapter_memory_mib' "
                    f"allows ({self._limit >> 20}); try again when some have ended"
                )
            slot, _ = self._slots.pop(digest)
            self._planner.forget_adapter(digest)
            self._runner.set_adapter(slot, None)
