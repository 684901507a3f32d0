"""What fits which device, and what is refused by name."""

from dataclasses import replace
from typing import Any

import pytest

from pyengine import AsyncEngine, EngineConfig
from pyengine.devices import DEVICES, cuda
from pyengine.devices.cpu import CPU
from pyengine.errors import ConfigError
from pyengine.model.devices import settled
from pyengine.model.spec import describe


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"device": "tpu"}, "device"),
        ({"chat_format": "nonsense"}, "chat_format"),
        ({"dtype": "float64"}, "dtype"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype"),
        ({"attention": "paged"}, "attention"),
        ({"gpu_memory_fraction": 0.0}, "gpu_memory_fraction"),
        ({"gpu_memory_fraction": 1.1}, "gpu_memory_fraction"),
        ({"gpu_memory_fraction": float("nan")}, "gpu_memory_fraction"),
        ({"graph_memory_mib": -1}, "graph_memory_mib"),
        ({"tensor_parallel": 0}, "tensor_parallel"),
        ({"tensor_parallel": 2, "device": "simulated"}, "tensor_parallel"),
        ({"tensor_parallel": 2, "draft_model": "demo"}, "draft_model"),
        ({"expert_parallel": True}, "expert_parallel"),
        ({"device": "cpu", "dtype": "float16"}, "dtype"),
        ({"device": "cpu", "kv_cache_dtype": "float8_e4m3"}, "kv_cache_dtype"),
        ({"device": "cpu", "attention": "torch"}, "attention"),
        ({"device": "cpu", "gpu_memory_fraction": 0.9}, "gpu_memory_fraction"),
        ({"device": "cpu", "graph_memory_mib": 0}, "graph_memory_mib"),
        ({"device": "simulated", "attention": "triton"}, "attention"),
        ({"device": "cuda", "threads": 2}, "threads"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"'{named}'") as refusal:
        EngineConfig(**settings)
    assert refusal.value.param == named


@pytest.mark.parametrize("gpu", [False, True])
def test_auto_is_the_gpu_where_there_is_one(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_has_gpu", lambda: gpu)
    assert settled(EngineConfig()).device == ("cuda" if gpu else "cpu")
    assert settled(EngineConfig(device="cpu")).device == "cpu"


def test_settings_that_auto_contradicts_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = EngineConfig(kv_cache_dtype="float8_e4m3")
    monkeypatch.setattr(cuda, "_has_gpu", lambda: False)
    with pytest.raises(ConfigError, match="'kv_cache_dtype'"):
        settled(config)
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        settled(EngineConfig(device="cuda"))
    monkeypatch.setattr(cuda, "_has_gpu", lambda: True)
    assert settled(config).device == "cuda"


def test_types_and_cache_go_by_the_device() -> None:
    on_cpu = describe(EngineConfig(device="cpu"))
    assert (on_cpu.info.dtype, on_cpu.info.kv_cache_dtype) == ("float32", "float32")
    on_gpu = describe(EngineConfig(device="cuda"))
    assert (on_gpu.info.dtype, on_gpu.info.kv_cache_dtype) == ("bfloat16", "bfloat16")
    assert on_gpu.info.block_bytes * 2 == on_cpu.info.block_bytes
    # Until it is measured, the longest sequence; the mode's preset is for the CPU.
    context = on_gpu.info.max_context
    assert on_gpu.num_blocks == -(-context // 16)
    assert describe(EngineConfig(device="cuda"), 7777).num_blocks == 7777
    small = describe(EngineConfig(device="cuda", kv_cache_dtype="float8_e4m3", num_blocks=3), 7777)
    assert (small.num_blocks, small.info.max_context) == (3, 48)
    assert small.info.block_bytes * 2 == on_gpu.info.block_bytes
    given = describe(EngineConfig(device="cuda", kv_cache_mib=1), 7777)
    assert given.num_blocks == 2**20 // on_gpu.info.block_bytes


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        AsyncEngine(nonsense=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="interactive, local, server"):
        AsyncEngine(mode="huge")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_sequences"):
        AsyncEngine(max_sequences="8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="prefix_cache"):
        AsyncEngine(prefix_cache="no")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="simulated_step_ms"):
        AsyncEngine(simulated_step_ms=float("inf"))
    with pytest.raises(ConfigError, match="thread or process"):
        AsyncEngine(placement="threads")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="either"):
        AsyncEngine("model", config=EngineConfig())
    with pytest.raises(ConfigError, match="max_tokens_per_step"):
        EngineConfig(max_sequences=64, max_tokens_per_step=32).limits.max_sequences  # noqa: B018


def limits(config: EngineConfig) -> tuple[int, int]:
    return config.limits.max_sequences, config.limits.max_tokens_per_step


def test_limits_of_a_server_are_those_of_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    h200, small = 139 << 30, 24 << 30
    server = EngineConfig(mode="server")
    assert limits(server.sized(h200)) == (1024, 8192)
    assert limits(server.sized(small)) == (256, 2048)
    assert limits(EngineConfig(mode="local").sized(h200)) == (16, 1024)
    given = EngineConfig(mode="server", max_sequences=64)
    assert limits(given.sized(h200)) == (64, 8192)
    given = EngineConfig(mode="server", max_tokens_per_step=512)
    assert limits(given.sized(h200)) == (256, 512)
    # Frontends, which know no GPU, turn nobody away whom the engine has room for.
    assert server.most_requests == 1024 + server.max_waiting
    assert EngineConfig(mode="server", device="cpu").most_requests == 256 + server.max_waiting
    assert given.most_requests >= 256 + given.max_waiting

    with_gpu = replace(cuda.CUDA, missing=lambda: None, memory_bytes=lambda: h200)
    monkeypatch.setitem(DEVICES, "cuda", with_gpu)
    monkeypatch.setattr("pyengine.model.devices.AUTOMATIC", (with_gpu, CPU))
    assert limits(settled(server)) == (1024, 8192)
    assert limits(settled(EngineConfig(mode="server", device="cpu"))) == (256, 2048)
    monkeypatch.setattr("pyengine.model.devices.AUTOMATIC", (CPU,))
    assert limits(settled(server)) == (256, 2048)


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENGINE_MODE", "server")
    monkeypatch.setenv("PYENGINE_MAX_SEQUENCES", "12")
    monkeypatch.setenv("PYENGINE_PREFIX_CACHE", "false")
    config = EngineConfig.from_environment(max_sequences=13)
    assert (config.mode, config.max_sequences, config.prefix_cache) == ("server", 13, False)
    monkeypatch.setenv("PYENGINE_MAX_SEQUENCES", "many")
    with pytest.raises(ConfigError, match="PYENGINE_MAX_SEQUENCES='many'"):
        EngineConfig.from_environment()
    monkeypatch.delenv("PYENGINE_MAX_SEQUENCES")
    monkeypatch.setenv("PYENGINE_NONSENSE", "1")
    with pytest.raises(ConfigError, match="PYENGINE_NONSENSE"):
        EngineConfig.from_environment()
