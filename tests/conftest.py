"""What all tests share: settings of libraries, the demo model, a word on missing data."""

import os
from collections import Counter, defaultdict
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


HAS_GPU = Path("/dev/nvidiactl").exists()

# What only the owner of a GPU needs: kernels under Triton's interpreter, devices that work late,
# the torch runner in all its forms, ranks. `make test-all` runs them.
GPU_OWNERS = (
    "benches/test_gpu",
    "distributed/",
    "kernels/",
    "model/test_attention_backends",
    "model/test_attention_by_kind",
    "model/test_block_linear",
    "model/test_device_",
    "model/test_draft_windows",
    "model/test_expert_counts",
    "model/test_expert_layers",
    "model/test_float8_linear",
    "model/test_flashinfer",
    "model/test_graphs",
    "model/test_late_",
    "model/test_memory",
    "model/test_packed_tables",
    "model/test_start_on_gpu",
    "model/test_states",
    "model/test_torch_",
    "model/test_weight_only_linear",
)
# `make test` keeps one file of each kind, which shows that the kind is whole.
KEPT = (
    "distributed/test_wire.py",
    "kernels/test_norm.py",
    "kernels/test_rope.py",
    "model/test_torch_model.py",
)

# `make test` runs at most this many cases of one parametrized test, spread evenly.
MOST_CASES = 6


def belongs_to_gpu_owners(path: Path) -> bool:
    """Whether the tests of a file are left to ``make test-all``."""
    name = path.relative_to(Path(__file__).parent).as_posix()
    return name.startswith(GPU_OWNERS) and name not in KEPT


def leaves_out_gpu(config: pytest.Config) -> bool:
    """Whether ``tests/gpu`` is passed over: without a GPU, unless the command line names it."""
    return not HAS_GPU and not any("gpu" in argument for argument in config.args)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over ``tests/gpu`` where every test of it would be skipped."""
    is_gpu = collection_path == Path(__file__).parent / "gpu"
    return True if is_gpu and leaves_out_gpu(config) else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say that ``tests/gpu`` is passed over."""
    return ["no GPU: tests/gpu is left out"] if leaves_out_gpu(config) else []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests of GPU owners and further cases to ``make test-all``, and let one process run all
    tests of a file that share a fixture, so that it is made once.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if belongs_to_gpu_owners(item.path):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") is None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for same in cases.values():
        kept = {at * (len(same) - 1) // (MOST_CASES - 1) for at in range(MOST_CASES)}
        for at, item in enumerate(same):
            if len(same) > MOST_CASES and at not in kept:
                item.add_marker(pytest.mark.slow)
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
