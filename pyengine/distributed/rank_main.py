"""A rank's process: ``python -m pyengine.distributed.rank_main CONTROL_FD``.

It loads its part of the model, runs the steps that rank 0 sends, and ends when its control line
does, whatever it waits for then.
"""

import gc
import os
import signal
import sys
import threading
import time
from collections import deque

from pyengine._core import Mailbox, MailboxClosed
from pyengine.distributed.rank_messages import Begin, Here, Meet, Ready, decode_to_rank
from pyengine.distributed.wire import Kind, kind_of, write
from pyengine.errors import PyengineError
from pyengine.model.batch import StepBuffers
from pyengine.model.runner import ModelRunner, StepHandle
from pyengine.placement.children import Failed, Line, Loading

# A step comes while the one before it is computed: whoever looks is not late.
SPIN_US = 50

# A rank that dies takes those down that wait for it, and should be the one that is named.
LAST_WORD_S = 0.5


def next_message(line: Line) -> Begin | Meet:
    """What rank 0 says next; ends the process at the end of the line."""
    message = line.hear()
    if not message:
        os._exit(0)
    return decode_to_rank(message)


def end_with(line: Line) -> None:
    """End the process with the line."""
    line.wait_for_end()
    os._exit(0)


class Follower:
    """Runs the steps in a ring on a runner, in the order of rank 0. One thread."""

    def __init__(self, ring: Mailbox, runner: ModelRunner) -> None:
        self._ring = ring
        self._runner = runner
        self._in_flight: deque[StepHandle] = deque()
        self._step: tuple[StepBuffers, StepHandle] | None = None

    def run(self) -> None:
        """Until the ring is closed.

        Raises:
            MailboxClosed: It is.
            Exception: Whatever made a step fail.
        """
        while True:
            self._ring.wait(None, SPIN_US)
            for message in self._ring.drain():
                self._obey(message)

    def _obey(self, message: bytes) -> None:
        kind = kind_of(message)
        if kind in (Kind.MORE_TO_LAUNCH, Kind.LAUNCH):
            if len(self._in_flight) > self._runner.overlap:
                self._in_flight.popleft().wait()
            buffers = self._runner.buffers()
            write(message, buffers.memory)
            if kind == Kind.LAUNCH:
                handle = self._runner.launch(buffers)
                self._step = buffers, handle
                self._in_flight.append(handle)
            return
        assert self._step is not None
        buffers, handle = self._step
        write(message, buffers.memory)
        if kind == Kind.SAMPLE:
            handle.sample()
            self._step = None


def main(descriptor: int) -> int:
    """Run a rank until its control line ends; the process's exit status."""
    # As the engine's process: what a signal to the whole group means, the starter decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    line = Line(descriptor)
    begin = next_message(line)
    assert isinstance(begin, Begin)
    ring = Mailbox.attach(*begin.steps)
    try:
        # torch reads the environment that this sets.
        from pyengine.distributed.group import TorchGroup, host_store
        from pyengine.distributed.start import rank_device, start_rank

        config = begin.config
        device = rank_device(config, begin.rank)
        line.say(Here())
        meet = next_message(line)
        assert isinstance(meet, Meet)
        threading.Thread(
            target=end_with, args=(line,), name="pyengine-control", daemon=True
        ).start()
        group = TorchGroup(host_store(meet.port), begin.rank, config.tensor_parallel, device)
        runner = start_rank(
            device, config, group, lambda done, total: line.say(Loading(done, total))
        )
        gc.collect()
        gc.freeze()
        line.say(Ready())
        Follower(ring, runner).run()
    except MailboxClosed:
        return 0
    except Exception as error:  # noqa: BLE001 - whatever it was, rank 0 is told
        if not isinstance(error, PyengineError):
            time.sleep(LAST_WORD_S)
        line.say(Failed.of(error))
        return 1
    return 0


if __name__ == "__main__":
    status = main(int(sys.argv[1]))
    sys.stdout.flush()
    os._exit(status)
