"""The messages between supervisor and workers on their control lines.

Messages about the engine are in :mod:`pyengine.placement.engine_messages`; the form is that of
:mod:`pyengine.placement.children`.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from pyengine.http.access.rules import AccessRules
from pyengine.http.admin.administration import RunningRequest
from pyengine.http.limits import Limits
from pyengine.http.serving.granian_server import Certificate
from pyengine.http.store.store import StoreLimits
from pyengine.logs import LogFormat, LogLevel
from pyengine.placement.children import Failed
from pyengine.placement.engine_messages import Asleep, Cleared, Down, GoOn, Up
from pyengine.settings.config import EngineConfig


class Work(msgspec.Struct, tag=True):
    """The first message to an HTTP worker: what to serve, with which inherited descriptors.

    Attributes:
        listener: The worker's listening socket, on the port of all workers.
        metrics_listener: The same for metrics, if they have a port of their own.
        certificate: For TLS.
        index: The worker's place among the engine's frontends.
        engine_runs: Whether the engine runs already, or sleeps, so that requests can be taken in a
            moment.
        first_request: The number of the worker's first request.
        limits: Bounds of requests.
        rules: The permissions of each key.
        log_level: Least severe of the lines that are logged.
        log_format: Their form.
        log_prompts: Whether bodies are logged too.
        rates: The memory of what keys have used.
        otlp_endpoint: The OpenTelemetry collector that is sent a span of every request, if any.
        store: The store of all workers.
    """

    config: EngineConfig
    listener: int
    metrics_listener: int | None
    certificate: Certificate | None
    scheduler: tuple[int, int]
    inbox: tuple[int, int]
    recorder: int
    heartbeat: int
    index: int
    engine_runs: bool
    first_request: int
    limits: Limits
    rules: AccessRules
    rates: int
    log_level: LogLevel
    log_format: LogFormat
    log_prompts: bool
    otlp_endpoint: str | None
    store: StoreLimits


class Stop(msgspec.Struct, tag=True):
    """To a worker: drain and end; the second time, end at once."""


class Access(msgspec.Struct, tag=True):
    """To a worker: who may use what, from now on."""

    rules: AccessRules


class NewCertificate(msgspec.Struct, tag=True):
    """To a worker: the files of the certificate have changed."""


class Ping(msgspec.Struct, tag=True):
    """To a worker: answer by a Pong, to show that its loop runs."""


class Pong(msgspec.Struct, tag=True):
    """From a worker: its loop runs."""


class Serving(msgspec.Struct, tag=True):
    """From a worker: it takes connections."""


class Draining(msgspec.Struct, tag=True):
    """From a worker: it finishes ``active`` requests before it ends."""

    active: int


class Command(msgspec.Struct, tag=True):
    """From a worker: what an administrator wants of the engine, or of the requests of all workers.

    Attributes:
        ticket: The ticket of the answer.
        what: What to do.
        request_id: Which request to abort; None is all.
    """

    ticket: int
    what: Literal["list", "abort", "sleep", "wake_up"]
    request_id: str | None = None


class Done(msgspec.Struct, tag=True):
    """To a worker: its command is carried out, or why not."""

    ticket: int
    requests: list[RunningRequest] = []
    failed: Failed | None = None


class Select(msgspec.Struct, tag=True):
    """To a worker: name its requests with that id, or all, and end them where ``abort``."""

    number: int
    request_id: str | None
    abort: bool


class Selected(msgspec.Struct, tag=True):
    """From a worker: those requests."""

    number: int
    requests: list[RunningRequest]


ToWorker = (
    Up | GoOn | Down | Asleep | Failed | Access | NewCertificate | Stop | Done | Select | Ping
)
FromWorker = Serving | Cleared | Draining | Command | Selected | Pong

decode_work = msgspec.json.Decoder(Work).decode
decode_to_worker: Callable[[bytes], ToWorker] = msgspec.json.Decoder(ToWorker).decode
decode_from_worker: Callable[[bytes], FromWorker] = msgspec.json.Decoder(FromWorker).decode
