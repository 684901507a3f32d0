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
from pyengine.http.limits import Limits


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


class Work(msgspec.Struct, tag=True):
    """What to serve, and by which inherited descriptors; to an HTTP worker, the first message.

    Attributes:
        listener: The listening socket, shared with the other workers.
        index: Which of the engine's frontends it is.
        first_request: Where the numbers of its requests begin.
        limits: What clients may ask.
        otlp_endpoint: The OpenTelemetry collector that is sent a span of every request, if any.
    """

    config: EngineConfig
    listener: int
    scheduler: tuple[int, int]
    inbox: tuple[int, int]
    recorder: int
    index: int
    first_request: int
    limits: Limits
    otlp_endpoint: str | None


class Up(msgspec.Struct, tag=True):
    """The engine runs, for the first time or again; to a worker."""

    info: EngineInfo


class Down(msgspec.Struct, tag=True):
    """The engine died and is started anew; to a worker."""


class Stop(msgspec.Struct, tag=True):
    """Drain and end; the second time: end at once. To a worker."""


class Serving(msgspec.Struct, tag=True):
    """Connections are taken; from a worker."""


class Draining(msgspec.Struct, tag=True):
    """So many requests are being finished; from a worker."""

    active: int


FromEngine = Loading | Ready | Failed
ToWorker = Up | Down | Failed | Stop
FromWorker = Serving | Draining

encode = msgspec.json.Encoder().encode
decode_start = msgspec.json.Decoder(Start).decode
decode_work = msgspec.json.Decoder(Work).decode
decode_to_worker: Callable[[bytes], ToWorker] = msgspec.json.Decoder(ToWorker).decode
decode_from_worker: Callable[[bytes], FromWorker] = msgspec.json.Decoder(FromWorker).decode
decode_from_engine: Callable[[bytes], FromEngine] = msgspec.json.Decoder(FromEngine).decode
