"""The messages on the control line between a process and the process that started it.

The end of the line means that the other side has ended; each side ends then too, so that neither
outlives the other.
"""

from collections.abc import Callable

import msgspec

from pyengine.logs import LogFormat, LogLevel
from pyengine.placement.children import Failed, Loading
from pyengine.queues import EngineInfo
from pyengine.settings.config import EngineConfig


class Start(msgspec.Struct, tag=True):
    """The configuration, the inherited descriptors of the queues, and how to log; to the engine."""

    config: EngineConfig
    scheduler: tuple[int, int]
    frontends: list[tuple[int, int]]
    recorder: int
    heartbeat: int
    logs: tuple[LogLevel, LogFormat] | None


class Ready(msgspec.Struct, tag=True):
    """The actors run; from the engine."""

    info: EngineInfo


class Up(msgspec.Struct, tag=True):
    """The engine runs, for the first time or again; to a worker, which tries its requests that may
    have killed the engine, and answers with Cleared.
    """

    info: EngineInfo


class Cleared(msgspec.Struct, tag=True):
    """No request is left that may have killed the engine; from a worker."""


class GoOn(msgspec.Struct, tag=True):
    """No worker has such a request: all requests go on; to a worker."""


class Down(msgspec.Struct, tag=True):
    """The engine died and is being restarted; to a worker."""


class Asleep(msgspec.Struct, tag=True):
    """The engine sleeps; to a worker, which may be new: requests are taken, and wait.

    Attributes:
        info: The facts about the engine as it was.
    """

    info: EngineInfo


FromEngine = Loading | Ready | Failed

decode_start = msgspec.json.Decoder(Start).decode
decode_from_engine: Callable[[bytes], FromEngine] = msgspec.json.Decoder(FromEngine).decode
