"""The division of a GPU's memory: arithmetic, words, and what is said where it does not suffice."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyengine.errors import ConfigError
from pyengine.model.spec import describe, make_layout
from pyengine.model.torch.attention.selection import Capabilities, select
from pyengine.model.torch.device.memory import (
    MOST_BLOCKS,
    Measured,
    divide,
    gibibytes,
    logits_bytes,
    stage,
)
from pyengine.model.torch.start.gpu import measured
from pyengine.model.torch.start.loading import attention_specs
from pyengine.settings.config import EngineConfig

GIB = 2**30
H200 = Measured(total=140 * GIB, others=GIB, weights=15 * GIB, workspace=2 * GIB)
BLOCK = 2 << 20

sizes = st.integers(0, 200 * GIB)


@given(
    total=st.integers(1, 200 * GIB),
    others=sizes,
    weights=sizes,
    workspace=sizes,
    graphs=sizes,
    fraction=st.none() | st.floats(0.01, 1.0),
    block_bytes=st.integers(1, GIB),
    blocks=st.none() | st.integers(1, 10_000),
)
def test_given_number_of_blocks_is_there(
    total: int,
    others: int,
    weights: int,
    workspace: int,
    graphs: int,
    fraction: float | None,
    block_bytes: int,
    blocks: int | None,
) -> None:
    found = Measured(total, others, weights, workspace)
    allowed = int(total * (0.9 if fraction is None else fraction))
    room = allowed - others - weights - workspace - graphs
    try:
        memory = divide(
            found,
            fraction=fraction,
            graphs=graphs,
            block_bytes=block_bytes,
            block_size=16,
            blocks=blocks,
        )
    except ConfigError:
        assert room < block_bytes * (blocks or 1)
        return
    assert memory.cache == memory.num_blocks * block_bytes <= room
    assert memory.num_blocks * 16 < 2**31
    assert blocks is not None or memory.num_blocks <= MOST_BLOCKS
    assert memory.free >= total - allowed
    if blocks is not None:
        assert memory.num_blocks == blocks
    elif memory.num_blocks < MOST_BLOCKS:
        assert room - memory.cache < block_bytes


def test_a_person_reads_where_it_went() -> None:
    memory = divide(H200, fraction=None, graphs=GIB, block_bytes=BLOCK, block_size=16)
    assert memory.num_blocks == (140 * 9 // 10 - 19) * 512
    assert str(memory) == (
        "140.0 GiB: weights 15.0, KV cache 107.0, graphs 1.00, workspace 2.00, others 1.00, "
        "free 14.0"
    )
    small = divide(H200, fraction=0.5, graphs=0, block_bytes=BLOCK, block_size=16, blocks=100)
    assert "KV cache 0.20, workspace" in str(small)
    assert gibibytes(5 << 20) == "0.00"


@pytest.mark.parametrize(
    ("changes", "said", "advice"),
    [
        ({"fraction": 0.1}, "gpu_memory_fraction", "Raise 'gpu_memory_fraction', lower"),
        ({"blocks": 10**6}, "kv_cache_mib", "Lower 'kv_cache_mib' or 'num_blocks', raise"),
        ({"graphs": 120 * GIB}, "gpu_memory_fraction", "lower 'graph_memory_mib', set"),
        ({"block_bytes": 120 * GIB}, "gpu_memory_fraction", "float8_e4m3, or take a smaller"),
    ],
    ids=str,
)
def test_error_of_too_little_memory_says_what_to_change(
    changes: dict[str, float], said: str, advice: str
) -> None:
    given = {"fraction": None, "graphs": 0, "block_bytes": BLOCK, "block_size": 16} | changes
    with pytest.raises(ConfigError) as refusal:
        divide(H200, **given)  # type: ignore[arg-type]
    assert refusal.value.param == said
    message = str(refusal.value)
    assert advice in message
    assert "Weights take 15.0, workspace 2.00" in message


def test_a_stage_that_runs_out_of_memory_says_which() -> None:
    with (
        pytest.raises(
            ConfigError, match=r"not enough for a step of 9 tokens: none left\. Lower it"
        ),
        stage("a step of 9 tokens", "Lower it.", "max_tokens_per_step"),
    ):
        raise torch.OutOfMemoryError("none left")
    with pytest.raises(ValueError, match="another"), stage("x", "y", "z"):
        raise ValueError("another")


def test_memory_beside_weights_and_cache_is_workspace() -> None:
    assert measured(100, 90, 60, weights=40, cache=12) == Measured(100, 10, 40, 8)
    # Numbers that came from different sources never give less than nothing.
    assert measured(100, 90, 30, weights=40, cache=12) == Measured(100, 10, 30, 0)


def test_attention_is_asked_for_what_a_rank_has() -> None:
    config = EngineConfig(device="cuda", kv_cache_dtype="float8_e4m3", max_sequences=4)
    spec = describe(config)
    (asked,) = attention_specs(spec.info, make_layout(config, spec.info), 2)
    assert asked.num_heads * 2 == spec.info.num_heads
    assert asked.num_kv_heads * 2 == spec.info.attention_layers[0].kv_heads
    assert (asked.dtype, asked.kv_dtype) == ("bfloat16", "float8_e4m3fn")
    assert (asked.max_rows, asked.max_tokens) == (4, 1024)
    assert asked.max_pages == 4 * -(-spec.info.max_context // 16)
    hopper = Capabilities("cuda", (9, 0), triton="3.6.0")
    assert select(asked, hopper).name == "triton"


@pytest.mark.parametrize(("gib", "mib"), [(24, 64), (64, 64), (80, 512), (140, 512)])
def test_logits_of_a_large_gpu_have_more_room(
    gib: int, mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,024 rows of 128k logits are one call then, which reads the weights of the head once."""
    properties = SimpleNamespace(total_memory=gib << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert logits_bytes(torch.device("cuda", 0)) == mib << 20
    assert logits_bytes(torch.device("cpu")) == 64 << 20
