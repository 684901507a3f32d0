"""Models without files: their specs, their parameters, and that they compute."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from pyengine import AsyncEngine, SamplingParams
from pyengine._core import StepLayout
from pyengine.demo import MODEL_PATH
from pyengine.errors import ConfigError
from pyengine.model.devices import load_runner
from pyengine.model.spec import describe
from pyengine.model.torch.attention.torch import TorchAttention
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.torch.layers.parts import TorchParts
from pyengine.model.torch.model import TorchModel
from pyengine.model.weights.dummy import DummyWeights, Noise
from pyengine.model.weights.folder import NAMED_SPECS, model_folder
from pyengine.model.weights.loader import open_weights
from pyengine.model.weights.matrix import Matrix
from pyengine.model.weights.sharding import RankWeights
from pyengine.settings.config import EngineConfig
from tests.model.llamas import Loop, make_llama, prompts
from tests.model.torch_steps import GreedyRunner

PARAMETERS = {
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "qwen3.5-0.8b": 752_393_024,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "glm-4.7-flash": 29_943_393_920,
}
LLAMAS = ("llama-3-8b", "llama-3-70b")


class Ranks:
    """One of so many ranks, which never exchange anything."""

    def __init__(self, size: int, rank: int = 0) -> None:
        self.size, self.rank = size, rank

    def all_reduce(self, tensor: torch.Tensor) -> None: ...
    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor) -> None: ...
    def least(self, number: int) -> int:
        return number

    def limit(self, seconds: float) -> None: ...


class Recorded(DummyWeights):
    """Keeps what it was asked for, by name."""

    asked: dict[str, tuple[int, ...]]

    def vector(self, name: str, size: int) -> NDArray[Any]:
        self.asked[name] = (size,)
        return super().vector(name, size)

    def matrix(self, name: str, shape: tuple[int, int], rows: slice, columns: slice) -> Noise:
        self.asked[name] = shape
        return super().matrix(name, shape, rows, columns)


def on_meta(name: str, ranks: int = 1) -> tuple[TorchModel, TorchParts, Recorded]:
    """The model without memory."""
    spec = describe(EngineConfig(model=name, load_format="dummy"))
    layout = StepLayout(2048, 256, 256 * 16, vocab_size=spec.info.vocab_size)
    meta, pages = torch.device("meta"), 16 + spec.info.state_pages
    parts = TorchParts(
        meta, torch.bfloat16, torch.bfloat16, TorchAttention(), 2048, 256, pages, Ranks(ranks)
    )
    weights = Recorded()
    weights.asked = {}
    return TorchModel(spec, layout, parts, RankWeights(weights, 0, ranks)), parts, weights


@pytest.mark.parametrize("name", NAMED_SPECS)
def test_a_named_spec_is_that_of_the_model(name: str) -> None:
    model, _, _ = on_meta(name)
    config = AutoConfig.for_model(**describe(EngineConfig(model=name, load_format="dummy")).config)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(config)
    # A router's bias is a buffer there.
    biases = sum(len(it) for key, it in theirs.named_buffers() if key.endswith("correction_bias"))
    assert model.num_parameters == PARAMETERS[name] == theirs.num_parameters() + biases


@pytest.mark.parametrize("name", LLAMAS)
def test_weights_of_a_llama_are_those_of_the_model(name: str) -> None:
    model, _, weights = on_meta(name)
    config = LlamaConfig(**describe(EngineConfig(model=name, load_format="dummy")).config)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(config)
    assert weights.asked == {k: tuple(v.shape) for k, v in theirs.state_dict().items()}
    assert model.pool.caches[0][0].shape == (16, 16, 8, 128)


def test_ranks_hold_their_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(ranks: int) -> int:
        made: list[torch.Tensor] = []

        def noted(transfer: Transfer, weight: Matrix) -> torch.Tensor:
            made.append(make(transfer, weight))
            return made[-1]

        with monkeypatch.context() as patch:
            patch.setattr(Transfer, "matrix", noted)
            model, _, _ = on_meta("llama-3-70b", ranks)
        assert {keys.shape[2] for keys, _ in model.pool.caches} == {8 // ranks}
        table, *layers = made  # every rank has all of the embeddings
        assert table.shape[0] > layers[0].shape[0]
        return sum(weight.numel() for weight in layers)

    make = Transfer.matrix

    assert held(1) == 8 * held(8) == 4 * held(4)


def test_heads_that_ranks_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="8 kv heads of llama-3-70b cannot be divided by 3"):
        on_meta("llama-3-70b", 3)


@pytest.mark.parametrize("name", NAMED_SPECS)
def test_a_named_spec_wants_to_be_told(name: str) -> None:
    with pytest.raises(ConfigError, match="load_format"):
        describe(EngineConfig(model=name))
    assert model_folder(name) == MODEL_PATH


def test_a_folder_by_that_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_llama(tmp_path / "llama-3-8b")
    monkeypatch.chdir(tmp_path)
    assert describe(EngineConfig(model="llama-3-8b")).info.hidden_size == 48


def test_dummy_weights_are_those_of_a_fresh_model_and_always_the_same(tmp_path: Path) -> None:
    make_llama(tmp_path, attention_bias=True)
    spec = describe(EngineConfig(model=str(tmp_path), load_format="dummy"))
    layer = "model.layers.0."
    with open_weights(spec) as weights:
        query = numbers(weights.table(f"{layer}self_attn.q_proj.weight", 48, 48))
        key = numbers(weights.table(f"{layer}self_attn.k_proj.weight", 48, 48))
        assert (weights.vector(f"{layer}input_layernorm.weight", 48) == 1).all()
        assert (weights.vector(f"{layer}self_attn.q_proj.bias", 48) == 0).all()
    assert query.std() == pytest.approx(0.25, rel=0.1)  # the config's initializer_range
    assert not np.array_equal(query, key)
    with open_weights(spec) as weights:
        again = weights.table(f"{layer}self_attn.q_proj.weight", 48, 48)
        assert np.array_equal(numbers(again), query)


def numbers(matrix: Matrix) -> NDArray[Any]:
    return matrix.dequantized(np.dtype(np.float32))


def without_weights(folder: Path, **changes: Any) -> Path:
    """The demo model's config and tokenizer in ``folder``, but no weights."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_PATH / name, folder)
    config = json.loads((MODEL_PATH / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_runners_compute_with_dummy_weights(dtype: Any, tmp_path: Path) -> None:
    without_weights(tmp_path)
    config = EngineConfig(
        model=str(tmp_path), device="cpu", dtype=dtype, load_format="dummy", num_blocks=64
    )
    runner = load_runner(config)
    asked = prompts(3, longest=20)
    rust = Loop(runner).generate(asked, 4)
    assert runner.info.num_parameters == load_runner(EngineConfig(device="cpu")).info.num_parameters
    if dtype == "float32":
        assert Loop(GreedyRunner(tmp_path, load_format="dummy")).generate(asked, 4) == rust


async def test_an_engine_speaks_with_more_tokens_than_its_tokenizer_has(tmp_path: Path) -> None:
    without_weights(tmp_path, vocab_size=20_000)
    config = EngineConfig(model=str(tmp_path), load_format="dummy", max_context=64)
    async with AsyncEngine(config=config) as engine:
        answer = await engine.generate("Hello", SamplingParams(max_tokens=24, ignore_eos=True))
    assert len(answer.token_ids) == 24
