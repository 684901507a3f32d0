"""What supervisor and workers say on their control lines, besides what becomes of the engine.

The form is that of :mod:`pyengine.placement.children`.
"""

from collections.abc import Callable

import msgspec

from pyengine.http.limits import Limits
from pyengine.placement.children import Failed
from pyengine.placement.control import Down, Up
from pyengine.settings.config import EngineConfig


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


class Stop(msgspec.Struct, tag=True):
    """Drain and end; the second time: end at once. To a worker."""


class Serving(msgspec.Struct, tag=True):
    """Connections are taken; from a worker."""


class Draining(msgspec.Struct, tag=True):
    """So many requests are being finished; from a worker."""

    active: int


ToWorker = Up | Down | Failed | Stop
FromWorker = Serving | Draining

decode_work = msgspec.json.Decoder(Work).decode
decode_to_worker: Callable[[bytes], ToWorker] = msgspec.json.Decoder(ToWorker).decode
decode_from_worker: Callable[[bytes], FromWorker] = msgspec.json.Decoder(FromWorker).decode
