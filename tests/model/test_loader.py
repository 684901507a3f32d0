import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.cpu.runner import CpuRunner
from pyengine.model.devices import load_runner
from pyengine.model.spec import describe
from pyengine.settings.config import EngineConfig
from tests.folders import edit_json
from tests.model.llamas import Loop, make_llama, make_runner


def scatter(folder: Path, to: Path) -> None:
    """The same weights in three files, each layer in all of them, the last layers first."""
    to.mkdir()
    (to / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors = load_file(folder / "model.safetensors")
    files: dict[str, list[str]] = {f"part-{place}.safetensors": [] for place in "zab"}
    for at, name in enumerate(sorted(tensors, reverse=True)):
        files[list(files)[at % 3]].append(name)
    for file, names in files.items():
        save_file({name: tensors[name] for name in names}, to / file)
    weight_map = {name: file for file, names in files.items() for name in names}
    index = {"metadata": {}, "weight_map": weight_map}
    (to / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_and_a_single_file_give_the_same(tmp_path: Path) -> None:
    make_llama(tmp_path / "one")
    make_llama(tmp_path / "many", shard="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    scatter(tmp_path / "one", tmp_path / "scattered")
    names = ("one", "many", "scattered")
    tokens = [Loop(make_runner(tmp_path / n)).generate([[3, 4, 5]], 8) for n in names]
    assert tokens[0] == tokens[1] == tokens[2]


def test_progress_rises_to_the_whole(tmp_path: Path) -> None:
    make_llama(tmp_path, shard="20KB")
    seen: list[tuple[int, int]] = []
    spec = describe(EngineConfig(model=str(tmp_path), num_blocks=8))
    from pyengine._core import StepLayout

    CpuRunner(
        spec,
        StepLayout(8, 2, 8, vocab_size=spec.info.vocab_size),
        max_sequences=2,
        threads=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == sorted(seen)
    assert len(seen) > 10
    total = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert seen[-1] == (total, total)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no model folder"):
        describe(EngineConfig(model=str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["RwkvForCausalLM"]}, "'RwkvForCausalLM' is not supported"),
        ({"vocab_size": 140}, r"shape \[131, 48\]; config.json wants \[140, 48\]"),
        ({"num_hidden_layers": 4}, r"lack 'model\.layers\.3\.input_layernorm\.weight'"),
        ({"hidden_size": "48"}, "'hidden_size' must be a positive integer"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "scaling 'spiral' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "lacks 'factor'"),
        ({"hidden_act": "xielu"}, "'xielu' is not supported"),
        ({"intermediate_size": 0}, "'intermediate_size' must be a positive integer"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"head_dim": 12}, "multiple of 8"),
    ],
)
def test_folder_that_cannot_be_loaded_is_named(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    heads: dict[str, Any] = {"head_dim": 12} if "head_dim" in changes else {}
    make_llama(tmp_path, **heads)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(ModelLoadError, match=message):
        make_runner(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    make_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="neither"):
        make_runner(tmp_path)


def test_a_missing_shard(tmp_path: Path) -> None:
    make_llama(tmp_path, shard="20KB")
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ModelLoadError, match=lost.name):
        make_runner(tmp_path)


def test_a_damaged_file(tmp_path: Path) -> None:
    make_llama(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match="cannot read the weights"):
        make_runner(tmp_path)


def test_quantized_weights(tmp_path: Path) -> None:
    make_llama(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    name = "model.layers.0.self_attn.q_proj.weight"
    weights[name] = weights[name].to(torch.int8)
    save_file(weights, path)
    with pytest.raises(ModelLoadError, match="is int8, and no"):
        make_runner(tmp_path)


def test_the_cache_must_hold_a_block(tmp_path: Path) -> None:
    make_llama(tmp_path)
    with pytest.raises(ConfigError, match="KV block"):
        describe(EngineConfig(model=str(tmp_path), block_size=1 << 16, kv_cache_mib=1))


def test_context_is_the_least_of_model_configuration_and_cache(tmp_path: Path) -> None:
    make_llama(tmp_path)

    def context(**changes: Any) -> int:
        return describe(EngineConfig(model=str(tmp_path), **changes)).info.max_context

    assert context() == 256
    assert context(max_context=100) == 100
    assert context(num_blocks=3) == 48


def test_ends_of_sequence_come_from_both_configs(tmp_path: Path) -> None:
    make_llama(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert describe(EngineConfig(model=str(tmp_path))).info.eos_token_ids == (7, 8, 1)


@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_a_runner_for_each_device(device: Any, tmp_path: Path) -> None:
    make_llama(tmp_path)
    config = EngineConfig(model=str(tmp_path), device=device, simulated_step_ms=0.0)
    runner = load_runner(config)
    assert runner.info.name == tmp_path.name
    assert runner.num_blocks == 256 * 2**20 // runner.info.block_bytes
    assert len(Loop(runner).generate([[1, 2, 3]], 4)[0]) == 4
    runner.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": float("nan")}, "'rope_theta' must be a finite number above 0, not nan"),
        ({"rope_theta": -1.0}, "'rope_theta' must be a finite"),
        ({"rms_norm_eps": float("inf")}, "'rms_norm_eps' must be a finite"),
        ({"rope_scaling": {"factor": float("nan")}}, r"'rope_scaling\.factor'"),
        ({"hidden_size": 10**9}, "'hidden_size' of 1000000000 is more than any model has"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' of 1000000000 is more"),
    ],
)
def test_numbers_that_no_model_has(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    make_llama(tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(ModelLoadError, match=message):
        describe(EngineConfig(model=str(tmp_path)))


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/etc/passwd", "x/../../y"])
def test_an_index_that_names_a_file_outside(name: str, tmp_path: Path) -> None:
    make_llama(tmp_path, shard="20KB")
    index = tmp_path / "model.safetensors.index.json"
    found = json.loads(index.read_text())
    found["weight_map"][next(iter(found["weight_map"]))] = name
    index.write_text(json.dumps(found))
    with pytest.raises(ModelLoadError, match="names a file outside the folder"):
        load_runner(EngineConfig(model=str(tmp_path), device="cpu"))


def test_weights_in_files_that_can_run_code(tmp_path: Path) -> None:
    make_llama(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="converts them to safetensors"):
        load_runner(EngineConfig(model=str(tmp_path), device="cpu"))


def test_a_context_beyond_the_model_is_refused(tmp_path: Path) -> None:
    make_llama(tmp_path)
    with pytest.raises(ConfigError, match="'max_context' is 9999999, but the model was made for"):
        describe(EngineConfig(model=str(tmp_path), max_context=9999999))
