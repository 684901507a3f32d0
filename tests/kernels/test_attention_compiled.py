"""Attention compiles for a GPU, which takes none, into code of the kind that it is meant to be."""

from pathlib import Path

import pytest

from tests.kernels.test_compiled import run


@pytest.mark.timeout(300)
def test_attention_compiles(tmp_path: Path) -> None:
    lines = run("-m", "tests.kernels.compiling_attention", TRITON_CACHE_DIR=str(tmp_path))
    assert lines[:2] == ["merge 16", "merge 16"]
    launches = [line.split() for line in lines[2:]]
    assert len(launches) == 8
    for _, _, rows, *flags, product, copied, shared in launches:
        # Tiles go to the tensor cores: as warps' products, or a whole group of warps'.
        assert product == ("wgmma" if int(rows) >= 64 else "mma"), flags
        # Keys and values are copied 16 bytes at a time while others are worked on.
        assert copied == "16"
        assert int(shared) <= 227 * 1024
