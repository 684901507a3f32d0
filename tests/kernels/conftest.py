from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import pytest

# torch's builds without CUDA come without triton.
collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


@pytest.fixture(autouse=True)
def kernels_overflow_in_silence() -> Iterator[None]:
    """As a GPU does; Triton's interpreter computes with numpy, which would warn."""
    with np.errstate(all="ignore"):
        yield
