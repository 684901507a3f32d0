"""The engine's process: ``python -m pyengine.placement.engine_main CONTROL_FD``.

It builds the actors on the queues that it inherited, and ends when its control line does.
"""

import gc
import os
import signal
import sys
import threading

from pyengine._core import Mailbox, Recorder
from pyengine.actors.actor import logger
from pyengine.engine import EngineActors, Queues
from pyengine.placement.children import Failed, Line, Loading
from pyengine.placement.engine_messages import Ready, decode_start

CLOSE_TIMEOUT_S = 5.0


def main(descriptor: int) -> int:
    """Run an engine until the control line ends; the process's exit status."""
    # An interrupt in the terminal reaches the whole group; what it means, the starter decides.
    # So it is with the signal that ends a service's whole group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    line = Line(descriptor)
    start = decode_start(line.hear())
    queues = Queues(
        Mailbox.attach(*start.scheduler),
        tuple(Mailbox.attach(*fds) for fds in start.frontends),
        Recorder.attach(start.recorder),
    )
    # What an engine before this one has left unread, its frontends will say again.
    while queues.scheduler.drain():
        pass
    # If the line ends while the weights are loading there is nothing to save.
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
        actors = EngineActors.load(
            start.config, queues, lambda done, total: line.say(Loading(done, total))
        )
    except Exception as error:  # noqa: BLE001 - whatever it was, the other side is told
        line.say(Failed.of(error))
        return 1
    loaded.set()
    # What is there now stays: a collection that looked at all of it would hold up a step.
    gc.collect()
    gc.freeze()

    def died(error: BaseException) -> None:
        line.say(Failed.of(error))
        ended.set()

    def crashed(error: BaseException) -> None:
        """Leave before the queues are closed: another engine goes on with them."""
        crashing.set()
        logger.critical("the engine crashed", exc_info=error)
        line.say(Failed.of(error))
        os._exit(1)

    actors.start(died, crashed)
    line.say(Ready(actors.info))
    ended.wait()
    if crashing.is_set():
        os._exit(1)  # the line ended because the crash was heard of
    actors.close(CLOSE_TIMEOUT_S)
    return 0 if actors.failure is None else 1


if __name__ == "__main__":
    status = main(int(sys.argv[1]))
    sys.stdout.flush()
    # Threads of torch may hold up an orderly exit; everything of ours is closed.
    os._exit(status)
