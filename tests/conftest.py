"""What the tests share: the models, the data folder, and an engine on each."""

import os
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

# A change is judged by the same cases each time; `make fuzz` looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile("repeatable")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The folder of the demo model."""
    return MODEL_PATH


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of traces, tokenizers and specs that lies beside a developer's checkout."""
    for parent in REPOSITORY.parents:
        if (parent / "shared" / "data").is_dir():
            return parent / "shared" / "data"
    pytest.skip("no ../shared/data beside this checkout: traces, tokenizers and specs are there")
