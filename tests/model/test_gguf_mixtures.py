"""Mixtures of experts in GGUF files are those of the folders that they were made from."""

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer

from pyengine.errors import ModelLoadError
from pyengine.model.spec import describe
from pyengine.model.weights.folder import model_folder
from pyengine.model.weights.loader import open_weights
from pyengine.settings.config import EngineConfig
from tests.model import families
from tests.model.ggufs import permuted
from tests.model.llamas import Loop, make_model, make_runner, prompts
from tests.model.test_gguf import add_shape

Arrays = dict[str, NDArray[np.float32]]

# By the architecture in the file: the family of the tests, and what no such file has.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-oss": ("gpt-oss", {"swiglu_limit": 7.0}),
    "llama": ("mixtral", {"sliding_window": None}),
    "olmoe": ("olmoe", {}),
    "qwen2moe": ("qwen2-moe", {"mlp_only_layers": []}),
    "qwen3moe": ("qwen3-moe", {"mlp_only_layers": []}),
}
QUICK = ("gpt-oss", "llama", "qwen3moe")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def together(arrays: Arrays) -> Arrays:
    """With the experts of a layer in one tensor, as llama.cpp's converter has them."""
    found: Arrays = {}
    experts: dict[str, dict[int, NDArray[np.float32]]] = {}
    for name, array in arrays.items():
        one = re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name)
        if one:
            experts.setdefault(f"{one[1]}.{one[3]}", {})[int(one[2])] = array
        elif name.endswith("experts.gate_up_proj"):  # gpt-oss: [experts, in, out], out in turn
            both = array.swapaxes(1, 2)
            found[name.replace("gate_up_proj", "gate_proj.weight")] = both[:, ::2]
            found[name.replace("gate_up_proj", "up_proj.weight")] = both[:, 1::2]
        elif name.endswith("experts.gate_up_proj_bias"):
            found[name.replace("gate_up_proj_bias", "gate_proj.bias")] = array[:, ::2]
            found[name.replace("gate_up_proj_bias", "up_proj.bias")] = array[:, 1::2]
        elif name.endswith("experts.down_proj"):
            found[f"{name}.weight"] = array.swapaxes(1, 2)
        elif name.endswith("experts.down_proj_bias"):
            found[name.replace("_bias", ".bias")] = array
        elif name.endswith("sinks"):
            found[f"{name}.weight"] = array
        else:
            found[name] = array
    stacks = {name: np.stack([of[at] for at in sorted(of)]) for name, of in experts.items()}
    return found | stacks


def add_mixture(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    inner = config.get("moe_intermediate_size", config["intermediate_size"])
    writer.add_expert_feed_forward_length(inner)
    if shared := config.get("shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(shared)
    if window := config.get("sliding_window"):
        writer.add_sliding_window(window)
    rotary = config.get("rope_parameters", {})
    if rotary.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rotary["factor"])
        writer.add_rope_scaling_orig_ctx_len(rotary["original_max_position_embeddings"])


def write(folder: Path, path: Path, architecture: str, kind: str, **changes: Any) -> Arrays:
    """A GGUF file of a folder's mixture, its experts of type ``kind``; its tensors, by name."""
    config = json.loads((folder / "config.json").read_text()) | changes
    writer = gguf.GGUFWriter(path, architecture)
    add_shape(writer, config)
    add_mixture(writer, config)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    writer.add_token_list([f"t{index}" for index in range(config["vocab_size"])])
    writer.add_token_merges([])
    writer.add_eos_token_id(1)
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    arrays = {
        name: each.float().numpy() for name, each in load_file(folder / "model.safetensors").items()
    }
    written: Arrays = {}
    for name, array in together(arrays).items():
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            which = "attention" if "q_" in name else "key_value"
            array = permuted(array, config[f"num_{which}_heads"])
        array = np.ascontiguousarray(array.squeeze())
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert own is not None, name
        chosen = kind if "_exps.weight" in own else "F16"
        stored = GGMLQuantizationType[chosen if array.ndim > 1 and "gate_inp" not in own else "F32"]
        data = quantize(array, stored)
        writer.add_tensor(own, data, raw_dtype=stored)
        written[own] = dequantize(data, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def made(tmp_path: Path, architecture: str, **changes: Any) -> tuple[Path, Path]:
    family, own = FAMILIES[architecture]
    kind, ours = families.FAMILIES[family]
    make_model(tmp_path / "folder", kind, dtype="float16", **ours | own | changes)
    return tmp_path / "folder", tmp_path / "model.gguf"


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in FAMILIES],
)
def test_a_file_says_what_its_folder_says(architecture: str, tmp_path: Path) -> None:
    folder, file = made(tmp_path, architecture)
    write(folder, file, architecture, "F16")
    asked = prompts(3, longest=40)
    assert Loop(make_runner(file)).generate(asked, 8) == Loop(make_runner(folder)).generate(
        asked, 8
    )


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "MXFP4"])
@pytest.mark.parametrize("architecture", ["gpt-oss", "qwen3moe"])
def test_experts_keep_their_bits(architecture: str, kind: str, tmp_path: Path) -> None:
    folder, file = made(tmp_path, architecture, intermediate_size=96, moe_intermediate_size=96)
    written = write(folder, file, architecture, kind)
    gates, ups, downs = (
        written[f"blk.2.ffn_{which}_exps.weight"][5] for which in ("gate", "up", "down")
    )
    weights, experts = open_weights(describe(EngineConfig(model=str(file)))), "model.layers.2.mlp."
    if architecture == "gpt-oss":
        both = weights.outputs({f"{experts}experts.gate_up_proj[5].T": 192}, 64)
        down = weights.inputs(f"{experts}experts.down_proj[5].T", 64, 96)
        wanted = np.stack([gates, ups], 1).reshape(192, 64)
    else:
        prefix = f"{experts}experts.5."
        both = weights.outputs({f"{prefix}gate_proj.weight": 96, f"{prefix}up_proj.weight": 96}, 64)
        down = weights.inputs(f"{prefix}down_proj.weight", 64, 96)
        wanted = np.concatenate([gates, ups])
    assert np.array_equal(both.dequantized(np.dtype(np.float32)), wanted)
    assert np.array_equal(down.dequantized(np.dtype(np.float32)), downs)
    assert len(Loop(make_runner(file)).generate([[1, 2, 3]], 4)[0]) == 4


def test_tensor_without_a_part_is_named(tmp_path: Path) -> None:
    folder, file = made(tmp_path, "qwen3moe")
    write(folder, file, "qwen3moe", "F16", num_experts=7, num_local_experts=7)
    with pytest.raises(ModelLoadError, match=r"'blk\.0\.ffn_gate_inp\.weight' in .* has shape"):
        make_runner(file)
    data = file.read_bytes().replace(b"qwen3moe.expert_count", b"qwen3moe.expert_tally")
    file.write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"'qwen3moe' of .* is not supported"):
        model_folder(str(file))


def test_text_is_divided_as_gpt_4o_divides_it(tmp_path: Path) -> None:
    folder, file = made(tmp_path, "gpt-oss")
    write(folder, file, "gpt-oss", "F16")
    tokenizer = Tokenizer.from_file(str(model_folder(str(file)) / "tokenizer.json"))
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str("HelloWorld's 1234 ABCdef/\n it'LL")
    assert [text for text, _ in pieces] == [
        *("Hello", "World's", "Ġ", "123", "4", "ĠABCdef", "/Ċ", "Ġit'LL"),
    ]
