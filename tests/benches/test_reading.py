"""The kernel that measures reading reads everything, where Triton is interpreted too."""

import pytest
import torch

pytest.importorskip("triton")

from benches.gpu.reading import BLOCK, LOOPS, read


def test_every_element_is_read_once() -> None:
    x = torch.arange(2 * BLOCK * LOOPS + 5, dtype=torch.float32).remainder_(97)
    out = torch.full((3,), -1.0)
    read(x, out)
    first, second = x[: 2 * BLOCK * LOOPS].view(2, -1).sum(1).tolist()
    assert out.tolist() == [first, second, -1.0]
