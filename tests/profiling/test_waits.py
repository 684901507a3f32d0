"""The profile names what kept tokens from their readers."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pyengine.profiling.waits import READERS
from tests.profiling.planted import Planted
from tests.programs import REPOSITORY

COUNTED = Path("/proc/self/schedstat").exists()


@pytest.mark.slow
@pytest.mark.skipif(not COUNTED, reason="the kernel does not count how threads are scheduled")
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("gil", "gil_wait"),
        ("loop", "loop_held"),
        ("template", "template"),
        ("reader", READERS),
        ("core", "core_wait"),
    ],
)
def test_a_planted_wait_is_the_largest_and_as_long_as_it_was(kind: str, cause: str) -> None:
    command = [sys.executable, "-m", "tests.profiling.planted", kind]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    planted = msgspec.json.decode(done.stdout, type=Planted)
    causes = dict(planted.waits.causes)
    if cause != "core_wait":
        causes.pop("core_wait")  # a busy machine keeps tokens, too
    assert next(iter(causes)) == cause
    assert planted.waits.causes[cause] == pytest.approx(planted.seconds * 1e3, rel=0.2)
