"""The control line between a process and whoever started it: JSON, one message a line.

A line that ends means that the other side has ended; each side acts on it at once, so that neither
outlives the other, however it ended.
"""

from collections.abc import Callable

import msgspec

from pyengine import errors
from pyengine.config import EngineConfig
from pyengine.engine import EngineInfo
from pyengine.errors import PyengineError


class Start(msgspec.Struct, tag=True):
    """What to build, and by which inherited descriptors to reach the queues; to the engine."""

    config: EngineConfig
    scheduler: tuple[int, int]
    frontends: list[tuple[int, int]]
    recorder: int


class Loading(msgspec.Struct, tag=True):
    """Bytes of weights loaded, and in all; from the engine."""

    done: int
    total: int


class Ready(msgspec.Struct, tag=True):
    """The actors run; from the engine."""

    info: EngineInfo


class Failed(msgspec.Struct, tag=True):
    """Loading failed, or an actor died; from the engine, its last word."""

    kind: str
    message: str
    param: str | None

    @classmethod
    def of(cls, error: BaseException) -> "Failed":
        """``error`` in a form that crosses to another process."""
        return cls(type(error).__name__, str(error), getattr(error, "param", None))

    def error(self) -> PyengineError:
        """The error again: one of pyengine's as it was, any other as EngineDeadError."""
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, PyengineError):
            return kind(self.message, param=self.param)
        return errors.EngineDeadError(f"{self.kind}: {self.message}")


class Up(msgspec.Struct, tag=True):
    """The engine runs, for the first time or again; to a worker."""

    info: EngineInfo


class Down(msgspec.Struct, tag=True):
    """The engine died and is started anew; to a worker."""


FromEngine = Loading | Ready | Failed

encode = msgspec.json.Encoder().encode
decode_start = msgspec.json.Decoder(Start).decode
decode_from_engine: Callable[[bytes], FromEngine] = msgspec.json.Decoder(FromEngine).decode
