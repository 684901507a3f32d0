"""The engine's process: ``python -m pyengine.placement.engine_main CONTROL_FD``.

It builds the actors on the queues that it inherited, and ends when its control line does.
"""

import gc
import os
import sys
import threading

from pyengine import logs
from pyengine._core import Mailbox, Recorder
from pyengine.actors.actor import logger
from pyengine.actors.heartbeat import Heartbeat
from pyengine.engine import EngineActors
from pyengine.model.cpu.cores import numa_nodes, stay_on_one_node
from pyengine.model.devices import settled
from pyengine.model.spec import describe
from pyengine.model.weights.folder import weight_bytes
from pyengine.placement.children import ControlLine, Failed, Loading, leave_signals
from pyengine.placement.engine_messages import Ready, Start, decode_start
from pyengine.queues import Queues
from pyengine.settings.config import EngineConfig

CLOSE_TIMEOUT_S = 5.0


def main(descriptor: int) -> int:
    """Run an engine until the control line ends; the process's exit status."""
    leave_signals()
    line = ControlLine(descriptor)
    if not (first := line.receive()):
        return 0  # the other side has ended before it started the engine
    start = decode_start(first)
    if start.logs is not None:
        logs.configure(*start.logs)
    queues = _inherited(start)
    # Until the weights are loaded there is nothing to close when the line ends.
    loaded = threading.Event()
    ended = threading.Event()
    crashing = threading.Event()

    def watch() -> None:
        line.wait_for_end()
        ended.set()
        if not loaded.is_set():
            os._exit(0)

    threading.Thread(target=watch, name="pyengine-control", daemon=True).start()
    try:
        _settle(start.config)
        actors = EngineActors.load(
            start.config, queues, lambda done, total: line.send(Loading(done, total))
        )
    except Exception as error:  # noqa: BLE001 - sent to the other side
        line.send(Failed.of(error))
        return 1
    loaded.set()
    # All objects of now stay: a collection that visited them would delay a step.
    gc.collect()
    gc.freeze()

    def died(error: BaseException) -> None:
        line.send(Failed.of(error))
        ended.set()

    def crashed(error: BaseException) -> None:
        """End the process before the queues are closed: the next engine uses them."""
        crashing.set()
        logger.critical("the engine crashed", exc_info=error)
        line.send(Failed.of(error))
        logs.finish()
        os._exit(1)

    actors.start(died, crashed)
    queues.heartbeat.keep_beating()
    line.send(Ready(actors.info))
    ended.wait()
    if crashing.is_set():
        os._exit(1)  # the other side closed the line because of the crash
    actors.close(CLOSE_TIMEOUT_S)
    return 0 if actors.failure is None else 1


def _settle(config: EngineConfig) -> None:
    """Keep an engine on the CPU, its threads and its memory, on one NUMA node that has room."""
    if len(numa_nodes()) < 2 or config.tensor_parallel > 1 or settled(config).device != "cpu":
        return
    spec = describe(settled(config))
    weights = weight_bytes(spec.info.folder, spec.config)
    stay_on_one_node(config.threads or 1, weights + spec.num_blocks * spec.info.block_bytes)


def _inherited(start: Start) -> Queues:
    """The queues that this process was started with, without the messages to an engine before it.

    The frontends send those again.
    """
    queues = Queues(
        Mailbox.attach(*start.scheduler),
        tuple(Mailbox.attach(*fds) for fds in start.frontends),
        Recorder.attach(start.recorder),
        Heartbeat(start.heartbeat),
    )
    while queues.scheduler.drain():
        pass
    return queues


if __name__ == "__main__":
    status = main(int(sys.argv[1]))
    logs.finish()
    # Threads of torch may delay an orderly exit; the engine is closed.
    os._exit(status)
