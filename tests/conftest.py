"""What all tests share: settings of libraries, the demo model, a word on missing data."""

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

# As the engine sets it before it loads torch: here a test may import torch first.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Triton decides as it is imported whether kernels are compiled or interpreted, and torch may
# import it: without a GPU they are interpreted.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from pyengine.demo import MODEL_PATH
from tests.reference import MISSING

# A change is judged by the same cases each time; `make fuzz` looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The folder of the demo model."""
    return MODEL_PATH


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process run all tests of a file that share a fixture, so that it is made once."""
    for item in items:
        fixtures = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009
        if any(definitions[-1].scope == "module" for definitions in fixtures):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests were skipped because data of others is not on this machine."""
    reasons = Counter(
        report.longrepr[2].partition(MISSING)[2]
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and MISSING in report.longrepr[2]
    )
    if reasons:
        terminalreporter.section("data that is not here", yellow=True)
        for reason, count in sorted(reasons.items()):
            terminalreporter.line(f"{count} tests skipped: {reason}", yellow=True)
