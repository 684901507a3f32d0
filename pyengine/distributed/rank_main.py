"""A rank's process: ``python -m pyengine.distributed.rank_main CONTROL_FD``.

It loads its share of the model, runs the steps that rank 0 sends, and ends at once when its control
line ends.
"""

import gc
import os
import sys
import threading
import time
from collections import deque

from pyengine._core import Mailbox, MailboxClosed
from pyengine.distributed.rank_messages import Begin, Here, Meet, Ready, decode_to_rank
from pyengine.distributed.wire import Kind, kind_of, read_adapter_message, write
from pyengine.errors import PyengineError
from pyengine.model.batch import StepBuffers
from pyengine.model.runner import ModelRunner, StepHandle
from pyengine.placement.children import ControlLine, Failed, Loading, leave_signals

# A step is sent while the one before it is computed: polling for it saves the wake-up.
SPIN_US = 50

# When a rank fails, the ranks that wait for it fail too. They report later, so that the error
# names the rank that failed first.
FAILURE_DELAY_S = 0.5


def next_message(line: ControlLine) -> Begin | Meet:
    """Rank 0's next message; ends the process at the end of the line."""
    message = line.receive()
    if not message:
        os._exit(0)
    return decode_to_rank(message)


def end_with(line: ControlLine) -> None:
    """End the process when the line ends."""
    line.wait_for_end()
    os._exit(0)


class Follower:
    """Runs the steps that a ring brings, in rank 0's order. One thread."""

    def __init__(self, ring: Mailbox, runner: ModelRunner) -> None:
        self._ring = ring
        self._runner = runner
        self._in_flight: deque[StepHandle] = deque()
        self._step: tuple[StepBuffers, StepHandle] | None = None

    def run(self) -> None:
        """Run steps until the ring is closed.

        Raises:
            MailboxClosed: The ring is closed.
            Exception: A step failed.
        """
        while True:
            self._ring.wait(None, SPIN_US)
            for message in self._ring.drain():
                self._run(message)

    def _run(self, message: bytes) -> None:
        kind = kind_of(message)
        if kind == Kind.ADAPTER:
            self._runner.set_adapter(*read_adapter_message(message))
            return
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
    # As in the engine's process: rank 0 decides what a signal to the whole group means.
    leave_signals()
    line = ControlLine(descriptor)
    begin = next_message(line)
    assert isinstance(begin, Begin)
    ring = Mailbox.attach(*begin.steps)
    try:
        # torch reads the environment that this sets.
        from pyengine.distributed.group import TorchGroup, host_store
        from pyengine.distributed.start import rank_start

        config = begin.config
        starts = rank_start(config)
        device = starts.device(config, begin.rank)
        line.send(Here())
        meet = next_message(line)
        assert isinstance(meet, Meet)
        threading.Thread(
            target=end_with, args=(line,), name="pyengine-control", daemon=True
        ).start()
        group = TorchGroup(host_store(meet.port), begin.rank, config.tensor_parallel, device)
        runner = starts.start(
            device, config, group, lambda done, total: line.send(Loading(done, total))
        )
        gc.collect()
        gc.freeze()
        line.send(Ready())
        Follower(ring, runner).run()
    except MailboxClosed:
        return 0
    except Exception as error:  # noqa: BLE001 - sent to rank 0
        if not isinstance(error, PyengineError):
            time.sleep(FAILURE_DELAY_S)
        line.send(Failed.of(error))
        return 1
    return 0


if __name__ == "__main__":
    status = main(int(sys.argv[1]))
    sys.stdout.flush()
    os._exit(status)
