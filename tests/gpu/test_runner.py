"""The engine on a GPU: the CPU's tokens, whatever attends, with graphs and without."""

import asyncio
import itertools
import os
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import ConfigError, RequestAbortedError, RequestFailedError
from pyengine.grammar import choice, json_schema, regex
from pyengine.model.torch.attention.selection import NAMES, detect, refusal
from pyengine.model.torch.device.graphs import CAPTURE_AFTER, CAPTURE_INTERVAL
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.gpu import start_on_gpu
from pyengine.settings.choices import AttentionName, Dtype
from pyengine.settings.config import EngineConfig
from tests.answers import assert_nothing_is_left, settled
from tests.model.llamas import Loop, Sequence
from tests.model.paged_steps import spec_of
from tests.models import greedy, mixed_prompts, random_llama
from tests.table_runner import Table, assert_samples_as_rust, plan, table_runner
from tests.test_logprobs import RULES, assert_those_of
from tests.test_placement import engine_process

TOKENS = 80
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)


def flashinfer_is_not_there() -> str | None:
    """Why not; None where it is."""
    if find_spec("flashinfer") is None or not torch.cuda.is_available():
        return "flashinfer is not installed, or there is no GPU"
    spec = spec_of(head_dim=64, dtype="bfloat16", kv_dtype="bfloat16")
    return refusal("flashinfer", spec, detect(torch.device("cuda", 0)))


WHY_NOT = flashinfer_is_not_there()
BACKENDS = [
    "torch",
    "triton",
    pytest.param("flashinfer", marks=pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))),
]
# FlashInfer has no float32, in which greedy tokens are exact.
EXACT = ["torch", "triton"]

SETTINGS: dict[str, dict[str, Any]] = {
    "prefix-cache": {},
    "chunks": {"prefill_chunk": 16, "prefix_cache": False},
    # Rows read pages that other rows of their step write.
    "chunks-side-by-side": {"prefill_chunk": 16},
    "preemption": {"num_blocks": 24},
    "drafts": {"speculation": ("ngram",), "_adaptive_drafts": False},
    "no-graphs": {"graph_memory_mib": 0},
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A random model's folder, and what transformers answers to each prompt on the CPU."""
    folder = tmp_path_factory.mktemp("llama")
    model = random_llama(folder, head_dim=64)
    return folder, greedy(model, mixed_prompts(), TOKENS)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[TorchRunner]:
    """The runners of the engines that a test starts."""
    made: list[TorchRunner] = []

    def load(config: EngineConfig, progress: object = None) -> TorchRunner:
        made.append(start_on_gpu(config))
        return made[-1]

    monkeypatch.setattr("pyengine.engine.load_runner", load)
    return made


async def ask_all(engine: AsyncEngine, params: SamplingParams = GREEDY) -> list[list[int]]:
    answers = await asyncio.gather(*(engine.generate(p, params) for p in mixed_prompts()))
    return [answer.token_ids for answer in answers]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("attention", EXACT)
async def test_greedy_tokens_in_float32_equal_the_cpus(
    reference: tuple[Path, list[list[int]]],
    attention: AttentionName,
    setting: str,
    runners: list[TorchRunner],
) -> None:
    folder, expected = reference
    given = {"max_sequences": 12, "kv_cache_mib": 64} | SETTINGS[setting]
    if "num_blocks" in given:
        del given["kv_cache_mib"]
    async with AsyncEngine(
        folder, device="cuda", dtype="float32", attention=attention, **given
    ) as engine:
        assert await ask_all(engine) == expected
        assert await ask_all(engine) == expected  # from graphs, where there are any
        report = await engine.report()
    assert report["free"] + report["cached"] == report["num_blocks"]
    (runner,) = runners
    if setting == "no-graphs" or attention == "torch":
        assert runner.graphs is None
    else:
        assert runner.graphs is not None
        assert runner.graphs.captures > 2


@pytest.mark.parametrize("attention", BACKENDS)
async def test_graphs_change_no_token(
    reference: tuple[Path, list[list[int]]], attention: AttentionName, runners: list[TorchRunner]
) -> None:
    """Rows may be padded to another bucket; every kernel computes a row by itself.

    A library may choose another algorithm for another number of rows, so that logits differ in the
    last bits of bfloat16: of answers of 80 tokens that start alike, most are to stay alike.
    """
    folder, _ = reference
    answers = []
    for graphs in (0, 256):
        async with AsyncEngine(
            folder, device="cuda", attention=attention, graph_memory_mib=graphs, kv_cache_mib=64
        ) as engine:
            await ask_all(engine)
            answers.append(await ask_all(engine))
    same = sum(one == other for one, other in zip(*answers, strict=True))
    assert same >= len(answers[0]) // 2
    plain, graphed = runners
    assert plain.graphs is None
    assert (graphed.graphs is None) == (attention == "torch")
    if graphed.graphs is not None:
        assert graphed.graphs.captures > 2


@pytest.mark.parametrize("attention", [each for each in BACKENDS if each != "torch"])
async def test_drafts_that_are_planned_ahead_change_no_token(
    reference: tuple[Path, list[list[int]]], attention: AttentionName, runners: list[TorchRunner]
) -> None:
    """The model drafts for itself."""
    folder, expected = reference
    exact = attention in EXACT
    given: dict[str, Any] = {"dtype": "float32" if exact else "bfloat16", "kv_cache_mib": 64}
    drafting: dict[str, Any] = {
        "draft_model": str(folder), "speculation": ("draft_model",), "_adaptive_drafts": False,
    }  # fmt: skip
    answers = []
    for how in ({"speculation": ()}, drafting):
        async with AsyncEngine(
            folder, device="cuda", attention=attention, max_sequences=12, **given, **how
        ) as engine:
            await ask_all(engine)
            answers.append(await ask_all(engine))
            report = await engine.report()
    assert not exact or answers == [expected, expected]
    same = sum(one == other for one, other in zip(*answers, strict=True))
    assert same >= len(expected) // 2
    assert report["accepted_draft_model"] > 0.8 * report["drafted_draft_model"] > 100
    assert report["free"] + report["cached"] == report["num_blocks"]
    assert runners[1].graphs is not None


def step_logits(runner: TorchRunner, tokens: list[int], chunk: int) -> torch.Tensor:
    """After ``tokens``, computed ``chunk`` at a time."""
    sequence, loop = Sequence(list(tokens), 0), Loop(runner, chunk)
    while len(sequence.tokens) == len(tokens):
        loop.step([sequence])
    model: Any = runner._model
    logits: torch.Tensor = model._model.logits_rows.tensor[0].float().cpu()
    return logits


TOLERANCES = [
    ("bfloat16", "auto", 0.06),
    ("float16", "auto", 0.02),
    ("bfloat16", "float8_e4m3", 0.5),
]


@pytest.mark.parametrize("attention", BACKENDS)
@pytest.mark.parametrize(("dtype", "kv_cache_dtype", "tolerance"), TOLERANCES)
def test_logits_are_close_to_transformers(
    attention: AttentionName, dtype: str, kv_cache_dtype: str, tolerance: float, tmp_path: Path
) -> None:
    """The tolerance is a share of the logits' deviation: bf16 0.06, fp16 0.02, fp8 cache 0.5."""
    model = random_llama(tmp_path, initializer_range=0.12, head_dim=64)
    settings: dict[str, Any] = {"dtype": dtype, "kv_cache_dtype": kv_cache_dtype}
    settings |= {"model": str(tmp_path), "attention": attention}
    config = EngineConfig(device="cuda", num_blocks=96, **settings)
    runner = start_on_gpu(config)
    for prompt in mixed_prompts()[2:6]:
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0, -1].float()
        for chunk in (5, 1000):
            ours = step_logits(runner, prompt, chunk)
            assert (ours - expected).abs().max() < tolerance * expected.std()
    runner.close()


@pytest.mark.parametrize("graphs", [None, 1 << 28])
@pytest.mark.parametrize("rows_per_call", [7, 1000])
def test_equal_logits_give_the_cpus_tokens(rows_per_call: int, graphs: int | None) -> None:
    """Drafts, masks, penalties and rules of any kind, in the buffers of a step."""
    runner, model = table_runner(Table(rows_per_call, device="cuda"), graphs=graphs)
    for _ in range(3):
        assert_samples_as_rust(runner, model)


QUESTIONS: tuple[dict[str, Any], ...] = (
    {"grammar": choice(["certainly", "certainly not", "perhaps"])},
    {"grammar": regex(r"The answer is [0-9]{1,3}\.")},
    {"grammar": json_schema({"type": "object", "properties": {"name": {"type": "string"}}})},
    {},
    {"params": SamplingParams(temperature=0.8, top_p=0.9, seed=11, max_tokens=30)},
    {"params": SamplingParams(temperature=0, repetition_penalty=1.4, max_tokens=30)},
)


async def ask_the_demo_model(**config: Any) -> list[str]:
    async with AsyncEngine(max_sequences=8, dtype="float32", **config) as engine:
        answers = await asyncio.gather(
            *(
                engine.generate(
                    f"<|im_start|>user\nSay {index}<|im_end|>\n<|im_start|>assistant\n",
                    **({"params": SamplingParams(temperature=0, max_tokens=30)} | question),
                )
                for index in range(4)
                for question in QUESTIONS
            )
        )
    return [answer.text for answer in answers]


@pytest.mark.parametrize("speculation", [None, ()], ids=["drafts", "no drafts"])
@pytest.mark.parametrize("attention", EXACT)
async def test_the_demo_model_answers_as_on_the_cpu(
    attention: AttentionName, speculation: Any
) -> None:
    """Masks and penalties come late, into steps that overlap."""
    expected = await ask_the_demo_model(device="cpu")
    config = {"device": "cuda", "attention": attention, "speculation": speculation}
    assert await ask_the_demo_model(**config) == expected


@pytest.mark.parametrize("attention", BACKENDS)
async def test_a_seed_gives_the_same_tokens_in_any_company(
    attention: AttentionName, reference: tuple[Path, list[list[int]]]
) -> None:
    """Alone and beside others, in buckets of any size, from graphs and without."""
    folder, _ = reference
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=7, max_tokens=20, ignore_eos=True)
    noise = SamplingParams(temperature=1.5, max_tokens=40, ignore_eos=True)
    dtype: Dtype = "bfloat16" if attention == "flashinfer" else "float32"
    async with AsyncEngine(
        folder, device="cuda", attention=attention, dtype=dtype, kv_cache_mib=64
    ) as engine:
        alone = await engine.generate([1, 2, 3], params)
        for others in (1, 2, 4, 6, 11):
            company = [engine.generate([5, 6, index], noise) for index in range(others)]
            together = await engine.generate([1, 2, 3], params)
            await asyncio.gather(*company)
            if dtype == "float32":
                assert together.token_ids == alone.token_ids
            assert together.token_ids[0] == alone.token_ids[0]


@pytest.mark.parametrize("attention", BACKENDS)
async def test_no_step_waits_for_the_device(
    attention: AttentionName,
    reference: tuple[Path, list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eager steps, captures and replays, masks and penalties: torch raises at a synchronous call.

    It says nothing of a copy from or to memory that is not pinned, which may wait as well.
    """
    copy = torch.Tensor.copy_

    def checked(into: torch.Tensor, given: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
        assert into.is_cuda == given.is_cuda or (given if into.is_cuda else into).is_pinned()
        return copy(into, given, *more, **named)

    if attention == "torch":
        pytest.skip("the reference gathers by lengths that Python knows; it may wait")
    folder, _ = reference
    given: dict[str, Any] = {"device": "cuda", "attention": attention, "kv_cache_mib": 64}
    penalized = SamplingParams(temperature=0, repetition_penalty=1.2, max_tokens=20)
    async with AsyncEngine(folder, **given) as engine:
        await ask_all(engine)  # compiles
        monkeypatch.setattr(torch.Tensor, "copy_", checked)
        torch.cuda.set_sync_debug_mode("error")
        try:
            await ask_all(engine)
            await engine.generate([1, 2], penalized)
            await engine.generate([1, 2], penalized, grammar=regex("[a-z]{1,9}"))
        finally:
            torch.cuda.set_sync_debug_mode("default")


async def test_no_block_stays_held_behind_leaving_clients_and_failed_steps(
    runners: list[TorchRunner],
) -> None:
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    short = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    async with AsyncEngine(device="cuda", max_sequences=8, kv_cache_mib=64) as engine:
        wanted = (await engine.generate("Go on", short)).token_ids
        running = [engine.generate("Go on", long) for _ in range(6)]
        await anext(running[0])
        for generation in running:
            generation.abort()
            with pytest.raises(RequestAbortedError):
                await generation
        await settled(engine)
        model: Any = runners[0]._model
        right = model.forward

        def fail(*_: Any) -> None:
            model.forward = right
            raise RuntimeError("injected")

        model.forward = fail
        with pytest.raises(RequestFailedError):
            await engine.generate([77, *range(300, 320)], short)
        assert (await engine.generate("Go on", short)).token_ids == wanted
        await assert_nothing_is_left(engine)


async def test_a_killed_engine_goes_on_where_it_was() -> None:
    """Its memory on the GPU goes with its process."""
    given: dict[str, Any] = {"device": "cuda", "dtype": "float32", "kv_cache_mib": 64}
    async with AsyncEngine(placement="process", **given) as engine:
        wanted = await engine.generate("Go on", GREEDY)
        generation = engine.generate("Go on", GREEDY)
        await anext(generation)
        os.kill(engine_process(engine), signal.SIGKILL)
        assert (await generation).token_ids == wanted.token_ids
        assert (await engine.generate("Go on", GREEDY)).token_ids == wanted.token_ids


@pytest.mark.parametrize("attention", EXACT)
async def test_log_probabilities_are_those_of_transformers(
    attention: AttentionName, tmp_path: Path
) -> None:
    model = random_llama(tmp_path, seed=3, head_dim=64)
    given: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
    config: dict[str, Any] = {"dtype": "float32", "attention": attention, "kv_cache_mib": 64}
    async with AsyncEngine(tmp_path, device="cuda", max_sequences=8, **config) as engine:
        for rules, top in itertools.product(RULES, (0, 3)):
            params = SamplingParams(logprobs=top, **given, **rules)
            prompts = mixed_prompts()[:5]
            answers = await asyncio.gather(*(engine.generate(p, params) for p in prompts))
            for prompt, answer in zip(prompts, answers, strict=True):
                assert_those_of(model, prompt, answer, top, 1e-3)


async def test_graphs_stay_within_their_memory(runners: list[TorchRunner]) -> None:
    async with AsyncEngine(device="cuda", graph_memory_mib=8, kv_cache_mib=64) as engine:
        for count in (1, 3, 5, 9, 14, 1):
            await asyncio.gather(*(engine.generate([9, index], GREEDY) for index in range(count)))
        graphs = runners[0].graphs
        if graphs is not None:
            assert graphs.used <= graphs.limit == 8 << 20
            assert graphs.captures > 0
    assert CAPTURE_AFTER + CAPTURE_INTERVAL < TOKENS


async def test_memory_is_divided_and_told() -> None:
    async with AsyncEngine(device="cuda", gpu_memory_fraction=0.5) as engine:
        assert "KV cache" in engine.info.notes["memory"]
        assert engine.info.notes["attention"].split()[0] in NAMES
        assert engine.info.device.startswith("cuda, ")
        answer = await engine.generate("The capital of France", GREEDY)
        assert len(answer.token_ids) == TOKENS
        taken = torch.cuda.mem_get_info()
        assert taken[1] - taken[0] <= 0.52 * taken[1]


async def test_too_much_is_refused_with_what_to_change() -> None:
    for config, said in (
        ({"kv_cache_mib": 10**7}, "kv_cache_mib"),
        ({"gpu_memory_fraction": 0.001}, "gpu_memory_fraction"),
    ):
        with pytest.raises(ConfigError, match=said):
            async with AsyncEngine(device="cuda", **config):
                pass


def test_times_of_steps_are_the_hosts() -> None:
    runner, _ = table_runner(Table(device="cuda"))
    last = time.monotonic_ns()
    for _ in range(50):
        begun = time.monotonic_ns()
        step = runner.launch(plan(runner, 4))
        step.sample()
        step.wait()
        ended = time.monotonic_ns()
        assert last <= step.start_ns <= step.end_ns <= ended
        assert step.start_ns >= begun - 100_000
        last = step.end_ns
