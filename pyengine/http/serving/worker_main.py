"""An HTTP worker's process: ``python -m pyengine.http.serving.worker_main CONTROL_FD``.

It serves the application on a listening socket whose port it shares with its siblings, over an
engine that its supervisor runs. It ends on a Stop message, or when its control line does.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys

import uvloop

from pyengine._core import Mailbox, Recorder
from pyengine.actors.heartbeat import Heartbeat
from pyengine.async_engine import AsyncEngine
from pyengine.errors import ConfigError
from pyengine.http.access.door import Door
from pyengine.http.access.rates import Rates
from pyengine.http.operations.request_log import RequestLog
from pyengine.http.operations.tracing import Tracing
from pyengine.http.serving.all_requests import AllRequests
from pyengine.http.serving.server import HttpServer, leave, stop_server
from pyengine.http.serving.worker_messages import (
    Access,
    Done,
    Draining,
    FromWorker,
    NewCertificate,
    Ping,
    Pong,
    Select,
    Selected,
    Serving,
    Stop,
    Work,
    decode_to_worker,
    decode_work,
)
from pyengine.http.store.store import Store
from pyengine.logs import configure
from pyengine.placement import FrontendSlot
from pyengine.placement.attached import AttachedPlacement
from pyengine.placement.child import open_line
from pyengine.placement.children import encode_line, leave_signals
from pyengine.placement.engine_messages import Cleared

log = logging.getLogger("pyengine.http")

# How long connections wait for a worker that joins a running engine.
READY_S = 5.0


class Worker:
    """One worker. Everything runs on its loop."""

    def __init__(self, work: Work, writer: asyncio.StreamWriter) -> None:
        configure(work.log_level, work.log_format)
        slot = FrontendSlot(
            Mailbox.attach(*work.scheduler),
            Mailbox.attach(*work.inbox),
            Recorder.attach(work.recorder),
            Heartbeat(work.heartbeat),
            work.index,
            work.first_request,
        )
        listener, metrics = _socket(work.listener), work.metrics_listener
        self.all_requests = AllRequests(self._say)
        self.placement = AttachedPlacement(
            slot,
            lambda: self._say(Cleared()),
            lambda asleep: self.all_requests.command("sleep" if asleep else "wake_up"),
        )
        self.engine = AsyncEngine(config=work.config, placement=self.placement)
        endpoint = work.otlp_endpoint
        tracing = None if endpoint is None else Tracing.to(endpoint)
        self.door = Door(work.rules, Rates(work.rates))
        self.server = HttpServer(
            self.engine,
            limits=work.limits,
            listener=listener,
            metrics_listener=None if metrics is None else _socket(metrics),
            certificate=work.certificate,
            tracing=tracing,
            door=self.door,
            request_log=RequestLog(work.log_level, work.log_format, prompts=work.log_prompts),
            store=Store(work.store),
        )
        self.server.app.administration = self.all_requests
        self._writer = writer
        self._engine_runs = work.engine_runs
        self._hurry = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Serve until a Stop message."""
        listening = asyncio.create_task(self._listen(reader))
        loading = asyncio.create_task(self.engine.start())
        loading.add_done_callback(self._loaded)
        if self._engine_runs:
            # Connections wait for the successor of a dead worker, instead of being turned away.
            await asyncio.wait({loading}, timeout=READY_S)
        if self._stopping is not None:
            await self._stopping
            return
        await self.server.start()
        self._say(Serving())
        ended = asyncio.create_task(self.server.wait_closed())
        await asyncio.wait({listening, ended}, return_when=asyncio.FIRST_COMPLETED)
        if self._stopping is None:
            os._exit(1)  # the line has ended, and with it the supervisor; or the server has failed
        await self._stopping

    def _loaded(self, loading: asyncio.Task[None]) -> None:
        if not loading.cancelled() and loading.exception() is not None:
            # Requests are answered with the failure. The other workers do not wait for this one.
            self._say(Cleared())

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Handle the supervisor's messages until its line ends."""
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                message = decode_to_worker(line)
                if isinstance(message, Access):
                    self.door.apply(message.rules)
                elif isinstance(message, NewCertificate):
                    self._renew_certificate()
                elif isinstance(message, Ping):
                    self._say(Pong())
                elif isinstance(message, Done):
                    self.all_requests.done(message)
                elif isinstance(message, Select):
                    own = self.server.app.own_requests
                    found = own.select(message.request_id, abort=message.abort)
                    self._say(Selected(message.number, found))
                elif not isinstance(message, Stop):
                    self.placement.receive(message)
                elif self._stopping is None:
                    self._say(Draining(self.server.app.active))
                    self._stopping = asyncio.create_task(stop_server(self.server, self._hurry))
                else:
                    self._hurry.set()
        os._exit(1)

    def _renew_certificate(self) -> None:
        try:
            self.server.renew_certificate()
        except ConfigError as error:
            log.error("%s: goes on as it was", error)

    def _say(self, message: FromWorker) -> None:
        self._writer.write(encode_line(message))


def _socket(descriptor: int) -> socket.socket:
    inherited = socket.socket(fileno=descriptor)
    inherited.setblocking(False)
    return inherited


async def main(descriptor: int) -> bool:
    """Serve as the first message of the line says; whether answers were broken off at the end."""
    leave_signals()  # the supervisor passes them on as Stop
    line = socket.socket(fileno=descriptor)
    reader, writer = await open_line(line)
    if not (first := await reader.readline()):
        return False
    worker = Worker(decode_work(first), writer)
    await worker.run(reader)
    await writer.drain()
    return worker.server.broken_off > 0


if __name__ == "__main__":
    broken_off = uvloop.run(main(int(sys.argv[1])))
    leave(broken_off=broken_off)
