"""The Python functions that ran below each stage, as py-spy samples them.

py-spy looks at the stacks of this process and of the engine's many times a second. A stack belongs
to the stage of the innermost function in it that ``_STAGES`` names; Rust and C are part of the
function that called them.
"""

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from os import getpid
from pathlib import Path

import msgspec

from pyengine.errors import ConfigError

RATE = 200
# Less of a stage's samples is not shown, nor is what lies deeper.
_LEAST, _DEPTH = 0.02, 8
_STAGES = {
    "SchedulerActor.drain": "drain",
    "SchedulerActor.launch": "launch",
    "SchedulerActor.sample": "sample",
    "SchedulerActor.commit": "commit",
    "SchedulerActor.rest": "idle",
    "Frontend._read": "message",
    "Frontend.submit": "message",
    "ChatHandler.prepare": "template",
    "ChatHandler.encode": "tokenize",
    "Tokenizer.encode": "tokenize",
}


class Flame(msgspec.Struct, array_like=True, frozen=True):
    """A function below a stage: how deep, and in how many samples it was there."""

    stage: str
    depth: int
    function: str
    samples: int


@asynccontextmanager
async def sampled(wanted: bool) -> AsyncIterator[list[Flame]]:
    """Sample this process and its children during the block; the list is filled when it ends.

    Raises:
        ConfigError: py-spy is not installed, or may not look.
    """
    flames: list[Flame] = []
    if not wanted:
        yield flames
        return
    program = shutil.which("py-spy", path=Path(sys.executable).parent) or shutil.which("py-spy")
    if program is None:
        raise ConfigError("--pyspy needs py-spy: pip install py-spy")
    with tempfile.NamedTemporaryFile() as file:
        options = f"record --subprocesses --nonblocking --format raw --rate {RATE}".split()
        spy = await asyncio.create_subprocess_exec(
            program, *options, "--pid", str(getpid()), "--output", file.name,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            yield flames
        finally:
            if spy.returncode is None:
                spy.send_signal(signal.SIGINT)
            _, said = await spy.communicate()
        if spy.returncode != 0:
            raise ConfigError(f"py-spy failed: {said.decode(errors='replace').strip()[-500:]}")
        flames += below_stages(file.read().decode(errors="replace").splitlines())


def below_stages(lines: Iterable[str]) -> Iterator[Flame]:
    """The functions below stages, each above those that it called; of py-spy's raw format."""
    counts: dict[tuple[str, ...], int] = {}
    for line in lines:
        stack, _, samples = line.rpartition(" ")
        frames = [frame.rpartition(":")[0] + ")" for frame in stack.split(";")]
        named = [at for at, frame in enumerate(frames) if frame.partition(" ")[0] in _STAGES]
        if named:
            path = frames[named[-1] :][:_DEPTH]
            stage = _STAGES[path[0].partition(" ")[0]]
            for depth in range(len(path)):
                key = (stage, *path[: depth + 1])
                counts[key] = counts.get(key, 0) + int(samples)
    whole = {stage: sum(n for key, n in counts.items() if key[0] == stage and len(key) == 2)
             for stage in {key[0] for key in counts}}  # fmt: skip

    def order(key: tuple[str, ...]) -> list[tuple[int, str]]:
        return [(-counts[key[:end]], key[end - 1]) for end in range(2, len(key) + 1)]

    for key in sorted(counts, key=lambda key: (-whole[key[0]], key[0], order(key))):
        if counts[key] >= _LEAST * whole[key[0]]:
            yield Flame(key[0], len(key) - 2, key[-1], counts[key])
