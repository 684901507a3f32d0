"""What the tests of the command line share."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import PYENGINE, environment

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def pyengine(tmp_path: Path) -> Run:
    """Run ``pyengine`` with arguments, and ``given`` on stdin, to its end."""

    def run(
        *arguments: str, given: str = "", **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*PYENGINE, *arguments],
            input=given,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(**variables),
            timeout=100,
            check=False,
        )

    return run
