"""Every architecture beside Llama says what transformers says, on both kinds of devices."""

import copy
import json
import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    FalconConfig,
    GPTBigCodeConfig,
    LlamaConfig,
)

from pyengine.errors import ModelLoadError
from pyengine.model.architectures import ARCHITECTURES
from pyengine.model.cpu.runner import CpuRunner
from pyengine.model.spec import describe
from pyengine.model.weights.stacked import place
from pyengine.model.windows import layer_windows
from pyengine.settings.config import EngineConfig
from tests.model.families import (
    FAMILIES,
    MIXTURES,
    QUICK,
    YARN,
    families,
    make_family,
)
from tests.model.hybrids import HYBRIDS, HYBRIDS_WITH_EYES
from tests.model.llamas import Loop, greedy, make_llama, make_model, make_runner, prompts
from tests.model.test_dummy import on_meta
from tests.model.test_renamed_families import FAMILIES as RENAMED
from tests.model.test_text_part import WITH_EYES
from tests.model.test_torch_model import logits_after
from tests.model.torch_steps import GreedyRunner


def edit(folder: Path, **changes: Any) -> None:
    """Change keys of the folder's config.json; None takes one out."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


@pytest.mark.parametrize("name", families(*QUICK))
def test_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    model = make_family(tmp_path, name, shard="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    asked = prompts(6)
    expected = [greedy(model, prompt, 16) for prompt in asked]
    for runner in (make_runner(tmp_path), GreedyRunner(tmp_path)):
        assert Loop(runner).generate(asked, 16) == expected
        assert Loop(runner, chunk=16, seed=1).generate(asked, 16) == expected


@pytest.mark.parametrize("name", families(*QUICK))
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.12)])
def test_logits_are_close(dtype: str, tolerance: float, name: str, tmp_path: Path) -> None:
    if dtype == "bfloat16" and name in MIXTURES:
        # transformers differs from itself in float32 by 0.3 there.
        pytest.skip("rounding turns near ties of routers, and other experts answer")
    if dtype == "bfloat16" and name.startswith("gemma 4"):
        pytest.skip("transformers differs from itself in float32 by 0.2: scores are not scaled")
    model = make_family(tmp_path, name, dtype=dtype, initializer_range=0.12)
    exact = copy.deepcopy(model).float()
    runners = (make_runner(tmp_path, dtype=dtype), GreedyRunner(tmp_path, dtype=dtype))
    for prompt in prompts(4):
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0, -1].float()
            rounding = (exact(torch.tensor([prompt])).logits[0, -1] - expected).abs().max()
        # Where transformers' own rounding is coarser than that, ours may be as coarse.
        bound = max(tolerance * expected.std(), 1.5 * rounding)
        for runner in runners:
            for chunk in (5, 1000):
                assert (logits_after(runner, prompt, chunk) - expected).abs().max() < bound


@pytest.mark.parametrize("name", FAMILIES)
def test_its_weights_are_all_that_are_read(name: str, tmp_path: Path) -> None:
    make_family(tmp_path, name)
    ours, _, weights = on_meta(str(tmp_path))
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        there = {name: tuple(file.get_slice(name).get_shape()) or (1,) for name in file.keys()}
    # What an index of keys and xIELU have and do not need.
    there = {
        name: each for name, each in there.items() if not re.search(r"indexer|act_fn.eps", name)
    }
    asked: dict[str, tuple[int, ...]] = {}
    for name, shape in weights.asked.items():
        tensor, index, transposed, _ = place(name)
        one = shape[::-1] if transposed else shape
        asked[tensor] = one if index is None else (max(asked.get(tensor, (0,))[0], index + 1), *one)
    assert asked == there
    assert ours.num_parameters == sum(map(prod, there.values()))


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (FalconConfig, {"num_kv_heads": 6, "parallel_attn": True, "ffn_hidden_size": 72}),
        (GPTBigCodeConfig, {}),
    ],
)
def test_one_head_of_keys_for_all_queries(kind: Any, own: dict[str, Any], tmp_path: Path) -> None:
    """Falcon 7B, StarCoder 1: one head that two ranks cannot divide, so none of the families."""
    model = make_model(tmp_path, kind, multi_query=True, **own)
    runner = make_runner(tmp_path)
    assert {keys.kv_heads for keys in runner.info.attention_layers.values()} == {1}
    asked = prompts(3)
    assert Loop(runner).generate(asked, 8) == [greedy(model, prompt, 8) for prompt in asked]


def test_a_draft_model_needs_positions_for_all_of_a_sequence(tmp_path: Path) -> None:
    """Rotation goes on; a table of positions ends."""
    target, draft = tmp_path / "target", tmp_path / "draft"
    make_llama(target)
    make_family(draft, "gpt-2", max_position_embeddings=64)
    for folder in (target, draft):
        (folder / "tokenizer.json").write_text("{}")
    config = EngineConfig(
        model=str(target), draft_model=str(draft), speculation=("draft_model",), num_blocks=96
    )
    with pytest.raises(ModelLoadError, match="positions for 64 tokens, and sequences may have 256"):
        CpuRunner.from_config(config)


def test_there_are_tests_of_every_architecture() -> None:
    kinds = {kind for kind, _ in (FAMILIES | HYBRIDS).values()} | {LlamaConfig}
    names = {getattr(MODEL_FOR_CAUSAL_LM_MAPPING[kind], "__name__", "") for kind in kinds}
    eyes = WITH_EYES | HYBRIDS_WITH_EYES
    names |= {kind.__name__ for kind, _ in eyes.values()}
    names |= {architecture for architecture, *_ in RENAMED.values()}
    assert names == set(ARCHITECTURES)


def test_norms_of_heads_are_not_those_of_llama(tmp_path: Path) -> None:
    make_family(tmp_path, "qwen3", tie_word_embeddings=True)
    edit(tmp_path, architectures=["LlamaForCausalLM"])
    with pytest.raises(ModelLoadError, match=r"no use: .*k_norm\.weight, .*q_norm\.weight"):
        make_runner(tmp_path)


def test_config_says_which_layers_have_a_window() -> None:
    def windows(**config: Any) -> tuple[int | None, ...]:
        return layer_windows(config, 3)

    assert windows() == windows(sliding_window=None) == (None, None, None)
    assert windows(sliding_window=100) == (100, 100, 100)
    # Qwen's configurations have a window and say whether, and from which layer on, it counts.
    assert windows(sliding_window=100, use_sliding_window=False) == (None, None, None)
    above = {"use_sliding_window": True, "max_window_layers": 2}
    assert windows(sliding_window=100, **above) == (None, None, 100)
    assert windows(sliding_window=100, sliding_window_pattern=2) == (100, None, 100)
    assert layer_windows({"sliding_window": 9, "model_type": "gemma3_text"}, 7) == (
        *[9] * 5,
        None,
        9,
    )
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    assert windows(sliding_window=100, layer_types=kinds) == (None, 100, None)
    with pytest.raises(ModelLoadError, match="'sliding_window' must be a positive integer"):
        windows(sliding_window="all", max_window_layers=0)
    with pytest.raises(ModelLoadError, match="'sliding_window_pattern' must be a positive"):
        windows(sliding_window=9, sliding_window_pattern="LLLG")
    with pytest.raises(ModelLoadError, match="layers of 'chunked_attention' are not supported"):
        windows(layer_types=["chunked_attention"] * 3)
    with pytest.raises(ModelLoadError, match="must name 3 layers"):
        windows(layer_types=["full_attention"])


def test_beyond_its_window_a_model_says_something_else(tmp_path: Path) -> None:
    """As far as a random one shows it: so the window counts in the tests above."""
    tokens = prompts(1)[0] * 9
    model = make_family(tmp_path, "mistral, heads apart, a window")
    edit(tmp_path, sliding_window=None)
    runner = make_runner(tmp_path)
    for length, same in ((24, True), (25, False)):
        with torch.inference_mode():
            expected = model(torch.tensor([tokens[:length]])).logits[0, -1].float()
        ours = logits_after(runner, tokens[:length], 1000)
        assert bool((ours - expected).abs().max() < 2e-4 * expected.std()) == same


def test_yarn_stretches_the_context(tmp_path: Path) -> None:
    def context(**changes: Any) -> int:
        edit(tmp_path, **changes)
        return describe(EngineConfig(model=str(tmp_path))).info.max_context

    make_family(tmp_path, "qwen2, tied, yarn")
    assert context() == 256
    # As Qwen's cards have it, where max_position_embeddings is that of the training.
    assert context(max_position_embeddings=64) == 256
    older = {"type": "yarn", "factor": 2.5, "original_max_position_embeddings": 64}
    assert context(rope_parameters=None, rope_scaling=older, rope_theta=10_000.0) == 160
    assert context(rope_scaling=older | {"original_max_position_embeddings": None}) == 64


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mistral", {"hidden_act": "tanh"}, "'tanh' is not supported"),
        ("qwen2", {"use_mrope": True}, "'use_mrope' of True"),
        ("qwen2", {"dual_chunk_attention_config": {"chunk_size": 9}}, "'dual_chunk_attention"),
        ("qwen2", {"layer_types": ["linear_attention"]}, "'linear_attention' are not supported"),
        ("qwen2", {"partial_rotary_factor": 0.5}, "'partial_rotary_factor' of 0.5"),
        ("qwen3", {"attention_bias": True}, r"lack 'model\.layers\.0\.self_attn\.q_proj\.bias'"),
        ("qwen3", {"head_dim": 8}, "has shape"),
        ("qwen3", {"quantization_config": {"bits": 4}}, "quantized"),
        ("phi3", {"rope_parameters": {"type": "longrope"}}, "'longrope' .* lacks 'short_factor'"),
        ("phi3", {"rope_parameters": YARN}, "'yarn' is not supported for Phi-3"),
        ("falcon", {"alibi": True}, "'alibi' of True"),
        ("gpt-2", {"scale_attn_by_inverse_layer_idx": True}, "'scale_attn_by_inverse_layer_idx'"),
        ("gpt-j", {"rotary_dim": 0}, "'rotary_dim' must be there"),
        ("opt", {"do_layer_norm_before": False}, "'do_layer_norm_before' of false"),
        ("opt", {"word_embed_proj_dim": 32}, "'word_embed_proj_dim' of 32"),
        ("hunyuan", {"use_cla": True}, "'use_cla' of True"),
        ("hunyuan, experts", {"moe_topk": [1, 2, 2, 2]}, "'moe_topk' that differs"),
        ("granite 4, dense", {"layer_types": ["linear"] * 4}, "layers of 'linear'"),
        ("phi", {"qk_layernorm": True}, "'qk_layernorm' of True"),
        ("phi3", {"num_key_value_heads": 1}, r"'.*qkv_proj\.weight' .* has shape"),
    ],
)
def test_unsupported_config_is_refused_by_name(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_family(tmp_path, name)
    if "partial_rotary_factor" in changes:  # as it stood before there were rope_parameters
        changes = changes | {"rope_parameters": None}
    edit(tmp_path, **changes)
    with pytest.raises(ModelLoadError, match=message):
        make_runner(tmp_path)


def test_a_config_as_transformers_wrote_it_before_version_five(tmp_path: Path) -> None:
    model = make_family(tmp_path, "qwen2, tied, yarn")
    edit(
        tmp_path,
        rope_parameters=None,
        rope_theta=YARN["rope_theta"],
        rope_scaling={key: YARN[key] for key in YARN if key.startswith(("factor", "original"))}
        | {"type": "yarn"},
    )
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).rope_parameters["rope_type"] == "yarn"
    asked = prompts(3)
    expected = [greedy(model, prompt, 8) for prompt in asked]
    assert [greedy(theirs, prompt, 8) for prompt in asked] == expected
    assert Loop(make_runner(tmp_path)).generate(asked, 8) == expected
