"""Adapters through a whole engine: many in one batch, exact, apart in the prefix cache."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import AdapterError, ConfigError, ModelNotFoundError
from pyengine.model.adapters.peft import MAX_RANK, read_adapter
from tests.adapters import ATTENTION, prompt_logprobs, with_peft, write_adapter
from tests.models import random_llama

RANKS = (4, 8, 12, 16, 24, 32, 48, 64)
NAMES = (None, *(f"rank-{rank}" for rank in RANKS))
SETTINGS: dict[str, Any] = {"num_blocks": 512, "max_sequences": 32, "threads": 2}
GREEDY = SamplingParams(temperature=0, max_tokens=12, logprobs=2, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and adapters of several ranks."""
    folder = tmp_path_factory.mktemp("adapters")
    (folder / "model").mkdir()
    model = random_llama(folder / "model")
    for rank in RANKS:
        write_adapter(folder / f"rank-{rank}", model, rank, seed=rank)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    """The same model in transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder / "model").eval()


def engine_of(folder: Path, **settings: Any) -> AsyncEngine:
    """An engine of the folder's model."""
    return AsyncEngine(str(folder / "model"), **SETTINGS | settings)


async def load_all(engine: AsyncEngine, folder: Path) -> None:
    """Load all adapters of the folder."""
    for rank in RANKS:
        await engine.load_adapter(folder / f"rank-{rank}")


def prompt(at: int) -> list[int]:
    """A prompt that differs from any other in its first token."""
    return [1 + at, *((7 * at + 3 * i) % 250 for i in range(5 + at))]


async def answer(engine: AsyncEngine, at: int, name: str | None, **options: Any) -> Any:
    """Tokens and log-probabilities of the answer to the prompt of that number."""
    given = await engine.generate(prompt(at), GREEDY, adapter=name, **options)
    scores = [entry.logprob for entry in given.logprobs or ()]
    return given.token_ids, scores, given.usage.cached_tokens


async def check_idle(engine: AsyncEngine) -> None:
    """No block is held, and no request is left."""
    report = await engine.report()
    assert report["held"] == report["running"] == report["waiting"] == 0
    assert report["free"] + report["cached"] == report["num_blocks"]


@pytest.mark.parametrize(
    "quantization",
    [
        None,
        pytest.param("int8", marks=pytest.mark.slow),
        pytest.param("int4", marks=pytest.mark.slow),
    ],
)
async def test_rows_of_a_batch_have_the_bits_that_they_have_alone(
    folder: Path, quantization: str | None
) -> None:
    cases = [(at, NAMES[at % len(NAMES)]) for at in range(32)]
    async with engine_of(folder, quantization=quantization, prefix_cache=False) as engine:
        await load_all(engine, folder)
        together = await asyncio.gather(*(answer(engine, *case) for case in cases))
        alone = [await answer(engine, *case) for case in cases]
        await check_idle(engine)
    assert together == alone
    async with engine_of(folder, quantization=quantization, prefix_cache=False) as engine:
        base = [await answer(engine, at, None) for at in range(0, 32, len(NAMES))]
    assert base == alone[:: len(NAMES)], "rows without an adapter are the model's own"
    different = {tuple(answer[0]) for answer in alone}
    assert len(different) > len(RANKS), "adapters change the answers"


SHAPES: dict[str, dict[str, Any]] = {
    "all layers": {},
    "attention alone": {"modules": ATTENTION},
    "queries and ups": {"modules": ("q_proj", "up_proj"), "lora_alpha": 32},
    "rsLoRA": {"use_rslora": True, "rank": 16},
    "an alpha of its own": {"alpha_pattern": {"v_proj": 3, r"layers\.0\.mlp\.down_proj": 40}},
    "a layer": {"layers_to_transform": [1], "modules": ("q_proj", "down_proj")},
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
async def test_log_probabilities_are_those_of_peft(
    folder: Path, model: Any, tmp_path: Path, shape: str
) -> None:
    pytest.importorskip("peft")
    written = write_adapter(tmp_path / "adapter", model, **SHAPES[shape])
    if "layers_to_transform" in SHAPES[shape]:
        keep_layers(written, SHAPES[shape]["layers_to_transform"])
    expected = prompt_logprobs(with_peft(model, written), prompt(20))
    async with engine_of(folder) as engine:
        await engine.load_adapter(written, "it")
        scored = await engine.prompt_logprobs(prompt(20), adapter="it")
        unchanged = await engine.prompt_logprobs(prompt(20))
    got = [entry.logprob for entry in scored if entry is not None]
    assert np.abs(np.subtract(got, expected)).max() < 1e-4
    base = [entry.logprob for entry in unchanged if entry is not None]
    assert np.abs(np.subtract(base, prompt_logprobs(model, prompt(20)))).max() < 1e-4
    assert np.abs(np.subtract(base, expected)).max() > 0.1


def keep_layers(folder: Path, layers: list[int]) -> None:
    """Leave the weights of these layers alone in an adapter's file."""
    from safetensors.numpy import load_file, save_file

    path = folder / "adapter_model.safetensors"
    wanted = tuple(f".layers.{layer}." for layer in layers)
    tensors = load_file(path)
    save_file(
        {name: of for name, of in tensors.items() if any(each in name for each in wanted)}, path
    )


async def test_prefixes_are_shared_within_an_adapter_alone(folder: Path) -> None:
    async with engine_of(folder) as engine:
        await load_all(engine, folder)
        first = await answer(engine, 30, "rank-4")
        assert first[2] == 0
        again = await answer(engine, 30, "rank-4")
        assert again[2] > 0
        assert again[:2] == first[:2]
        for other in (None, "rank-8"):
            assert (await answer(engine, 30, other))[2] == 0
        await engine.load_adapter(folder / "rank-4", "alias")
        assert (await answer(engine, 30, "alias"))[2] > 0, "an adapter is its digest"
        await check_idle(engine)


async def test_a_reload_under_the_same_name_leaves_running_requests_alone(
    folder: Path, model: Any, tmp_path: Path
) -> None:
    written = write_adapter(tmp_path / "it", model, seed=1)
    async with engine_of(folder) as engine:
        await engine.load_adapter(written, "it")
        old = [await answer(engine, at, "it") for at in range(16)]
        running = [engine.generate(prompt(at), GREEDY, adapter="it") for at in range(16)]
        renewed = write_adapter(tmp_path / "new", model, seed=2)
        await engine.load_adapter(renewed, "it")
        new = await asyncio.gather(*(answer(engine, at, "it") for at in range(16)))
        finished = await asyncio.gather(*running)
        assert [each.token_ids for each in finished] == [each[0] for each in old]
        await engine.load_adapter(renewed, "other")
        assert [each[2] for each in new] == [0] * 16, "no prefix of the old one is hit"
        assert [await answer(engine, at, "other") for at in range(16)] == [
            (*each[:2], cached) for each, cached in zip(new, cached_of(16), strict=True)
        ]
        await check_idle(engine)


def cached_of(count: int) -> list[int]:
    """Tokens of the first prompts that a second request takes from the cache."""
    return [(len(prompt(at)) - 1) // 16 * 16 for at in range(count)]


async def test_a_name_that_was_taken_away_is_not_found(folder: Path) -> None:
    async with engine_of(folder) as engine:
        with pytest.raises(ModelNotFoundError, match="no adapter 'rank-4'"):
            engine.generate(prompt(1), GREEDY, adapter="rank-4")
        await engine.load_adapter(folder / "rank-4")
        before = await answer(engine, 1, "rank-4")
        assert engine.unload_adapter("rank-4").base == "model"
        for _ in range(2):
            with pytest.raises(ModelNotFoundError):
                engine.unload_adapter("rank-4")
            with pytest.raises(ModelNotFoundError):
                engine.generate(prompt(1), GREEDY, adapter="rank-4")
        await engine.load_adapter(folder / "rank-4", "again")
        assert (await answer(engine, 1, "again"))[:2] == before[:2]


async def test_the_least_recently_used_adapters_give_way_and_come_back(
    folder: Path, model: Any, tmp_path: Path
) -> None:
    names = [f"large-{at}" for at in range(4)]
    for at, name in enumerate(names):  # 0.4 MiB each, of which two have room
        write_adapter(tmp_path / name, model, rank=32, seed=at)
    async with engine_of(folder, adapter_memory_mib=1) as engine:
        for name in names:
            await engine.load_adapter(tmp_path / name)
        first = [await answer(engine, 3, name) for name in names]
        assert (await engine.report())["adapters_loaded"] == 2
        again = [await answer(engine, 3, name) for name in names]
        assert [each[:2] for each in first] == [each[:2] for each in again]
        (tmp_path / names[0] / "adapter_model.safetensors").unlink()
        with pytest.raises(Exception, match=r"has no adapter_model\.safetensors"):
            await answer(engine, 3, names[0])
        await check_idle(engine)


@pytest.mark.slow
async def test_drafts_grammars_and_preemption_change_no_token_of_an_adapter(folder: Path) -> None:
    from pyengine import regex

    cases = [(at, NAMES[at % len(NAMES)]) for at in range(24)]

    async def answers(grammar: bool, **settings: Any) -> list[Any]:
        async with engine_of(folder, **settings) as engine:
            await load_all(engine, folder)
            options: dict[str, Any] = {"grammar": regex("[a-zA-Z]{12,40}")} if grammar else {}
            found = await asyncio.gather(*(answer(engine, *case, **options) for case in cases))
            await check_idle(engine)
            return [each[:2] for each in found]

    for grammar in (False, True):
        plain = await answers(grammar, speculation=())
        drafted = await answers(grammar, speculation=("ngram",), max_draft=4)
        assert drafted == plain
        assert await answers(grammar, num_blocks=24) == plain, "preempted"
        assert await answers(grammar, max_tokens_per_step=32, prefill_chunk=5) == plain


@pytest.mark.slow
async def test_ranks_share_a_model_with_its_adapters(folder: Path) -> None:
    async with engine_of(folder) as engine:
        await load_all(engine, folder)
        alone = [await answer(engine, at, name) for at, name in enumerate(NAMES)]
    async with engine_of(folder, tensor_parallel=2, threads=1) as engine:
        await load_all(engine, folder)
        cases = enumerate(NAMES)
        shared = await asyncio.gather(*(answer(engine, *case) for case in cases))
        await check_idle(engine)
    for (tokens, scores, _), (expected, numbers, _) in zip(shared, alone, strict=True):
        assert tokens == expected
        assert np.abs(np.subtract(scores, numbers)).max() < 1e-4


def refusals(folder: Path, model: Any) -> Iterator[tuple[str, str]]:
    """Folders of adapters that are no good, and what the error names."""
    good = write_adapter(folder / "good", model)
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    nan, wide = np.full((8, 64), np.nan, np.float32), np.zeros((8, 65), np.float32)
    odd: dict[str, tuple[dict[str, Any], str]] = {
        "dora": ({"use_dora": True}, "DoRA"),
        "saved": ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        "bias": ({"bias": "all"}, "biases"),
        "kind": ({"peft_type": "IA3"}, "IA3"),
        "nan": ({"tensors": {key: nan}}, "finite"),
        "shape": ({"tensors": {key: wide}}, "65 inputs"),
        "rank": ({"r": 9}, "rank 8"),
        "huge": ({"rank": MAX_RANK + 1}, f"at most {MAX_RANK}"),
        "half": ({"tensors": {"base_model.model.x.lora_A.weight": nan}}, "only lora_A"),
        "magnitude": ({"tensors": {"a.lora_magnitude_vector": nan}}, "DoRA"),
        "unknown": (
            {"tensors": {f"a.experts.0.lora_{half}.weight": wide[:, :8] for half in "AB"}},
            "experts",
        ),
        "pattern": ({"alpha_pattern": {"(": 3}}, "alpha_pattern"),
        "alpha": ({"lora_alpha": 0}, "lora_alpha"),
    }
    for name, (changes, words) in odd.items():
        yield str(write_adapter(folder / name, model, **changes)), words
    pickled = folder / "pickled"
    pickled.mkdir()
    (pickled / "adapter_config.json").write_text((good / "adapter_config.json").read_text())
    (pickled / "adapter_model.bin").write_bytes(b"")
    yield str(pickled), "pickled"
    yield str(folder / "nothing"), "adapter_config.json"
    broken = write_adapter(folder / "broken", model)
    (broken / "adapter_model.safetensors").write_bytes(b"{}")
    yield str(broken), "cannot read"


async def test_what_is_no_good_is_refused_by_its_name(
    folder: Path, model: Any, tmp_path: Path
) -> None:
    async with engine_of(folder) as engine:
        for path, words in refusals(tmp_path, model):
            with pytest.raises(AdapterError) as refused:
                await engine.load_adapter(path)
            assert words in refused.value.message, path
        with pytest.raises(AdapterError, match="name of the model"):
            await engine.load_adapter(folder / "rank-4", engine.model_name)
        with pytest.raises(AdapterError, match="colon"):
            await engine.load_adapter(folder / "rank-4", "a:b")
        assert not engine.adapters
        assert (await engine.report())["adapters_loaded"] == 0


async def test_configured_adapters_are_there_from_the_start(folder: Path) -> None:
    async with engine_of(folder, adapter=(f"it={folder / 'rank-4'}",)) as engine:
        assert list(engine.adapters) == ["it"]
        assert await answer(engine, 1, "it") != await answer(engine, 1, None)
    with pytest.raises(ConfigError, match="adapter_config"):
        async with engine_of(folder, adapter=("it=/nowhere",)):
            pass
    with pytest.raises(ConfigError, match="'adapter' must be name=folder"):
        engine_of(folder, adapter=("it",))


async def test_an_engine_that_was_killed_goes_on_with_the_adapter(folder: Path) -> None:
    async with AsyncEngine(str(folder / "model"), **SETTINGS, placement="process") as engine:
        await engine.load_adapter(folder / "rank-16")
        await engine.load_adapter(folder / "rank-4")
        before = await answer(engine, 2, "rank-4")
        await engine.sleep()
        waiting = asyncio.create_task(answer(engine, 2, "rank-4"))
        await engine.wake_up()
        assert (await waiting)[:2] == before[:2]


def test_a_digest_is_of_what_an_adapter_does(folder: Path, model: Any, tmp_path: Path) -> None:
    first = read_adapter(write_adapter(tmp_path / "a", model, seed=1))
    same = read_adapter(write_adapter(tmp_path / "b", model, seed=1, base_model_name_or_path="x"))
    scaled = read_adapter(write_adapter(tmp_path / "c", model, seed=1, lora_alpha=9))
    other = read_adapter(write_adapter(tmp_path / "d", model, seed=2))
    assert first.digest == same.digest
    assert len({first.digest, scaled.digest, other.digest}) == 3
    assert json.loads((tmp_path / "a/adapter_config.json").read_text())["r"] == 8
