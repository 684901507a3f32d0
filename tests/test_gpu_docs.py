"""docs/GPU.md tells the truth about settings: names, flags, defaults, refusals."""

import re
from typing import Any

import pytest

from pyengine.cli.options import ENGINE_OPTIONS, spelled
from pyengine.errors import ConfigError
from pyengine.settings.config import EngineConfig
from tests.programs import REPOSITORY

DOCS = (REPOSITORY / "docs" / "GPU.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| (?:`([\w-]+)`)? *\| `([^`]+)` \|", DOCS, re.MULTILINE)


@pytest.mark.parametrize(("name", "flag", "default"), ROWS, ids=[row[0] for row in ROWS])
def test_a_setting_is_as_the_table_says(name: str, flag: str, default: str) -> None:
    assert str(getattr(EngineConfig(), name)) == default
    assert flag == (spelled(name) if name in ENGINE_OPTIONS else "")


def test_every_setting_of_gpus_is_there() -> None:
    named = {name for name, _, _ in ROWS}
    of_gpus = {"device", "dtype", "load_format", "kv_cache_dtype", "attention", "tensor_parallel"}
    assert named >= of_gpus | {"gpu_memory_fraction", "graph_memory_mib"}


def test_docs_list_the_refusals_on_a_gpu() -> None:
    assert "`threads` is refused on a GPU, and `draft_model` with several." in " ".join(
        DOCS.split()
    )
    EngineConfig(device="cuda", draft_model="demo")
    refusals: list[tuple[str, dict[str, Any]]] = [
        ("threads", {"threads": 2}),
        ("draft_model", {"draft_model": "demo", "tensor_parallel": 2}),
    ]
    for name, given in refusals:
        with pytest.raises(ConfigError) as raised:
            EngineConfig(device="cuda", **given)
        assert raised.value.param == name


def test_flags_exist() -> None:
    known = {spelled(name) for name in ENGINE_OPTIONS}
    assert set(re.findall(r"--[a-z][\w-]+", DOCS)) <= known
