"""A Python program under a control line: ``python -m pyengine.http.replicas.program_main FD``.

It runs the module that the line's first message names, as ``python -m`` would. Each further message
is a SIGTERM to the program, and the end of the line is its end, so that it never outlives the
process that started it. It is out of reach of the terminal's signals.
"""

import os
import runpy
import signal
import sys
import threading

import msgspec

from pyengine.placement.children import ControlLine, admit_signals


class Run(msgspec.Struct):
    """The first message: what to run.

    Attributes:
        module: The program.
        arguments: The arguments of its command line; no other program sees them.
        environment: Variables beside those of the starting process.
        output: An inherited descriptor for what it prints.
        quiet: Whether that is stderr only, and stdout goes nowhere.
        cores: The CPUs that it may use; None is all.
    """

    module: str
    arguments: list[str]
    environment: dict[str, str]
    output: int
    quiet: bool = False
    cores: list[int] | None = None


class Stop(msgspec.Struct):
    """Ask the program to end, by SIGTERM."""


def main(descriptor: int) -> None:
    """Run the program until it ends, or the line does."""
    os.setsid()
    admit_signals()
    line = ControlLine(descriptor)
    run = msgspec.json.decode(line.receive(), type=Run)
    os.environ.update(run.environment)
    os.dup2(os.open(os.devnull, os.O_WRONLY) if run.quiet else run.output, 1)
    os.dup2(run.output, 2)
    os.close(run.output)
    if run.cores is not None:
        os.sched_setaffinity(0, run.cores)

    def obey() -> None:
        while line.receive():
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(1)

    threading.Thread(target=obey, name="pyengine-control", daemon=True).start()
    sys.argv = [run.module, *run.arguments]
    runpy.run_module(run.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
