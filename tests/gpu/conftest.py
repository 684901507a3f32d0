"""Tests that need a CUDA device; without one they are skipped, and left out unless they are named.

``tests/test_gpu_suite.py`` collects them on every machine, so that they do not rot. The device that
they ran on is printed at the end of a run.

On a new machine compiling takes most of the time, one kernel after the other. With pytest-xdist
(``-n 8``) test_kernels, test_paged_attention and test_sampling share it out; the others measure
memory and time, and want the GPU for themselves.
"""

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

# torch's builds without CUDA come without triton.
collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]

FOLDER = Path(__file__).parent


# Notices of torch's own, which are no errors of ours: a mode that it calls a prototype, a graph of
# a model that queues nothing, a setting that has a newer name in some versions.
NOTICES = (
    "Synchronization debug mode is a prototype",
    "The CUDA Graph is empty",
    "Please use the new API settings to control TF32",
)

# On a machine's first run every kernel is compiled, in whichever test comes to it first.
TIMEOUT_S = 240


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and skip it where there is no GPU."""
    here = [item for item in items if item.path.is_relative_to(FOLDER)]
    skip = None if torch.cuda.is_available() else pytest.mark.skip(reason="no CUDA device")
    for item in here:
        item.add_marker(pytest.mark.gpu)
        for notice in NOTICES:
            item.add_marker(pytest.mark.filterwarnings(f"ignore:{notice}:UserWarning"))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if skip is not None:
            item.add_marker(skip)


@cache
def device_facts() -> list[str]:
    """What figures and failures depend on."""
    from benches.gpu.machine import facts

    return [f"{name}: {value}" for name, value in facts(torch.device("cuda")).items()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if torch.cuda.is_available():
        terminalreporter.section("device")
        for line in device_facts():
            terminalreporter.line(line)


@pytest.fixture(autouse=True)
def no_memory_is_left() -> Iterator[None]:
    """Memory of one test is not held while the next runs; a kernel's error is that of its test."""
    yield
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def whatever_is_captured_can_be(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The engine goes on without a graph that fails, and says so; here that is a failure."""
    yield
    said = [record.getMessage() for record in caplog.get_records("call")]
    assert [text for text in said if "cannot be captured" in text] == []
