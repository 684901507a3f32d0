"""The runner of torch devices, on the CPU: alone by its protocol, and under the engine."""

import asyncio
import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import RequestAbortedError, RequestFailedError
from pyengine.grammar import choice, json_schema, regex
from pyengine.kernels.layers.tiles import BORDERS
from pyengine.model.cpu.runner import CpuRunner
from pyengine.model.step_fields import sampling_rows
from pyengine.model.torch.device.graphs import CAPTURE_AFTER
from pyengine.model.torch.start.warm_up import capture_graphs, warm_up, write_step
from pyengine.settings.config import EngineConfig
from tests.answers import assert_nothing_is_left, settled
from tests.models import greedy, mixed_prompts, random_llama
from tests.table_runner import Table, assert_samples_as_rust, plan, run, table_runner
from tests.test_logprobs import RULES, assert_those_of
from tests.torch_devices import KINDS, start, use_torch


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("rows_per_call", [7, 1000])
@pytest.mark.parametrize("graphs", [None, 1 << 30])
def test_equal_logits_give_the_cpus_tokens(
    overlap: bool, rows_per_call: int, graphs: int | None
) -> None:
    """Drafts, masks, penalties and rules of any kind, in the buffers of a step."""
    runner, model = table_runner(Table(rows_per_call=rows_per_call), overlap=overlap, graphs=graphs)
    assert_samples_as_rust(runner, model)


def test_sets_take_turns_and_steps_go_in_order() -> None:
    runner, _ = table_runner(overlap=True)
    one = runner.launch(plan(runner, 2))
    with pytest.raises(RuntimeError, match="not sampled yet"):
        runner.launch(runner.buffers())
    one.sample()
    with pytest.raises(RuntimeError, match="sampled already"):
        one.sample()
    two = runner.launch(plan(runner, 3))
    with pytest.raises(RuntimeError, match="not sampled"):
        two.wait()
    two.sample()
    with pytest.raises(RuntimeError, match="in flight"):
        runner.buffers()
    assert len(one.wait().tokens) == 2
    assert len(two.wait().tokens) == 3
    assert one.start_ns <= one.end_ns <= two.start_ns <= two.end_ns
    assert one.waited_ns[0] == one.waited_ns[1]


def test_steps_that_are_all_greedy_take_one_kernel_to_sample() -> None:
    """One row that draws takes all rows of its step to the other kernels."""
    runner, _ = table_runner()
    sampler = runner._sampler
    called: list[str] = []

    def noted(name: str, kernel: Callable[..., None], *arguments: object) -> None:
        called.append(name)
        kernel(*arguments)

    sampler._greedy = partial(noted, "greedy", sampler._greedy)
    sampler._sample = partial(noted, "sample", sampler._sample)
    run(runner, 3)
    buffers = plan(runner, 3)
    buffers.num_greedy = 2
    buffers.sampling[1:2] = sampling_rows(1, temperature=1.0)
    step = runner.launch(buffers)
    step.sample()
    step.wait()
    assert called == ["greedy", "sample"]


def test_a_masked_step_says_when_it_waited() -> None:
    runner, _ = table_runner()
    buffers = plan(runner, 2, masks=2)
    buffers.mask[:2] = 1 << 5
    buffers.mask_row[:2] = 0, 1
    step = runner.launch(buffers)
    step.sample()
    assert step.wait().tokens.tolist() == [5, 5]
    assert step.start_ns <= step.waited_ns[0] < step.waited_ns[1] <= step.end_ns


def test_last_sampled_token_is_fed_to_the_next_step() -> None:
    runner, model = table_runner(overlap=True)
    model.table[0, 7] = model.table[1, 8] = 1.0
    one = runner.launch(plan(runner, 2))
    one.sample()
    buffers = plan(runner, 2)
    buffers.num_feeds = 2
    buffers.feed_token[:2], buffers.feed_sequence[:2] = (1, 0), (0, 1)
    two = runner.launch(buffers)  # before anything of the first is known here
    two.sample()
    assert one.wait().tokens.tolist() == [7, 8]
    two.wait()
    assert runner._step.token_ids[:2].tolist() == [8, 7]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("part", ["forward", "logits"])
def test_a_failing_step_leaves_the_set_free(part: str, overlap: bool) -> None:
    runner, model = table_runner(overlap=overlap)
    assert len(run(runner, 2)) == 2
    for _ in range(3):
        model.fail = part
        buffers = plan(runner, 2)
        with pytest.raises(RuntimeError, match=f"no {part}"):
            runner.launch(buffers).sample()
        model.fail = None
        assert len(run(runner, 3)) == 3


def test_a_closed_runner_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, _ = table_runner(graphs=1 << 30)
    released: list[bool] = []
    monkeypatch.setattr(runner._queue, "release", lambda: released.append(runner._model is None))
    for _ in range(CAPTURE_AFTER + 4):
        run(runner, 1)
    assert runner.graphs is not None
    assert len(runner.graphs) == 2
    buffers = plan(runner, 1)
    runner.close()
    runner.close()
    assert released == [True]  # behind all that held memory
    assert len(runner.graphs) == 0
    with pytest.raises(RuntimeError, match="closed"):
        runner.launch(buffers)


def test_every_replay_is_planned_for_its_bucket() -> None:
    runner, model = table_runner(graphs=1 << 30)
    log = model.log
    for _ in range(12):
        run(runner, 3)
    del log[:]
    run(runner, 3)
    # 3 tokens in a bucket of 4; the forward pass and the sampler are graphs of their own.
    assert log == [
        ("plan", "decode", 4, 4, True), "replay", ("forward", 4), "replay", ("logits", 4, 0),
    ]  # fmt: skip
    del log[:]
    run(runner, 3, 2)
    assert log[:2] == [("plan", "ragged", 3, 6, False), ("forward", 6)]
    for _ in range(12):
        run(runner, 3, 2)
    del log[:]
    run(runner, 3, 2)
    assert log[:3] == [("plan", "ragged", 8, 8, True), "replay", ("forward", 8)]


@pytest.mark.parametrize("fails", [True, False])
def test_step_that_cannot_be_captured_is_computed(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    runner, model = table_runner(graphs=1 << 30 if fails else 1)
    assert runner.graphs is not None
    runner.graphs._capturer.fails = fails  # type: ignore[attr-defined]
    model.table[:, 5] = 1.0
    for _ in range(20):
        assert run(runner, 3) == [5, 5, 5]
    assert (len(runner.graphs), model.log.count("capture")) == (0, 2)
    assert len(caplog.records) == 2


def test_a_step_is_queued_before_any_of_it_is_captured() -> None:
    runner, model = table_runner(graphs=1 << 30)
    for _ in range(CAPTURE_AFTER):
        del model.log[:]
        run(runner, 3)
    # The third in its bucket, so that all that the capture runs has run before.
    assert model.log == [
        ("plan", "decode", 4, 4, True),
        ("forward", 4),
        ("logits", 4, 0),
        "capture",
    ]


def test_graphs_of_decodes_are_captured_at_the_start() -> None:
    runner, model = table_runner(graphs=1 << 30)
    capture_graphs(runner)
    assert runner.graphs is not None
    # Of 1, 2, 4, 8 and 16 rows, each with a greedy and another sampling.
    assert (len(runner.graphs), runner.graphs.captures) == (15, 15)
    del model.log[:]
    for rows in (1, 2, 3, 7, 12):
        run(runner, rows)
    assert model.log.count("capture") == 0
    assert model.log.count("replay") == 2 * 5
    run(runner, 3, 2)  # drafts: when it is wanted for the third time, as ever
    assert "capture" not in model.log


def test_steps_with_prompts_are_replayed_too() -> None:
    """Decodes with a prompt beside them, of another length each time."""
    runner, model = table_runner(graphs=1 << 30)
    for tokens in itertools.islice(itertools.cycle((9, 11, 13, 15)), 24):
        buffers = runner.buffers()
        write_step(buffers, [1, 1, 1, tokens], 16, 3)
        buffers.num_decode_rows = buffers.num_sampled = buffers.num_greedy = 3
        buffers.logit_start[:4] = range(4)
        step = runner.launch(buffers)
        step.sample()
        step.wait()
    plans = [entry for entry in model.log if entry[0] == "plan"]
    assert plans[0] == ("plan", "ragged", 4, 12, False)
    assert plans[-4:] == [
        ("plan", "ragged", 16, 16, True), ("plan", "ragged", 16, 16, True),
        ("plan", "ragged", 16, 16, True), ("plan", "ragged", 16, 24, True),
    ]  # fmt: skip


def test_large_steps_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyengine.model.torch.step.work.MAX_TOKENS", 5)
    runner, model = table_runner(graphs=1 << 30)
    for _ in range(20):
        run(runner, 3, 2)
    assert ("plan", "ragged", 3, 6, False) in model.log
    assert not any(entry[-1] is True for entry in model.log if entry[0] == "plan")


def python_calls(runner: Any, rows: int) -> int:
    """Calls of Python and C functions that one step makes, and what the collector adds."""
    buffers, counted = plan(runner, rows), 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        step = runner.launch(buffers)
        step.sample()
        step.wait()
    finally:
        sys.setprofile(None)
    return counted


def test_a_step_is_the_same_python_however_many_rows() -> None:
    def calls(rows: int) -> int:
        runner, _ = table_runner(overlap=True, graphs=1 << 30)
        runner._sampler._greedy = runner._sampler._verify = lambda *_: None
        for _ in range(20):
            run(runner, rows)
        return min(python_calls(runner, rows) for _ in range(5))

    # Only the choice of a bucket is another for 8 rows and more.
    assert calls(1) == calls(7)
    assert calls(9) == calls(16)


def test_the_largest_step_and_small_ones_are_computed_at_the_start(tmp_path: Path) -> None:
    random_llama(tmp_path)
    config = EngineConfig(
        model=str(tmp_path), max_tokens_per_step=300, max_sequences=4, num_blocks=16, max_draft=3
    )
    for kind in KINDS:
        runner = start(config, kind)
        warm_up(runner, 256)
        log: list[Any] = getattr(runner._model.backend, "log", [])  # type: ignore[union-attr]
        sizes = [entry[2:4] for entry in log if entry[0] == "plan"]
        # Then a step in each tile of quantized products, powers of two; greedy, with penalties,
        # with log-probabilities too.
        tiles = [(1, tokens) for tokens in BORDERS]
        assert sizes in ([(2, 300), *tiles, (1, 1), (2, 2), (4, 4), *[(1, 1)] * 3], [])


TOKENS = 80  # more than admission keeps room for (64), so that a small cache preempts
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
SETTINGS: dict[str, dict[str, Any]] = {
    "prefix-cache": {},
    "chunks": {"prefill_chunk": 16, "prefix_cache": False},
    "preemption": {"num_blocks": 24},
    "drafts": {"speculation": ("ngram",), "_adaptive_drafts": False},
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A random model's folder, and what transformers answers to each prompt."""
    folder = tmp_path_factory.mktemp("llama")
    model = random_llama(folder)
    return folder, greedy(model, mixed_prompts(), TOKENS)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
async def test_greedy_tokens_equal_transformers(
    reference: tuple[Path, list[list[int]]],
    setting: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runners = use_torch(monkeypatch, kind)
    folder, expected = reference
    given = {"max_sequences": 12, "kv_cache_mib": 16} | SETTINGS[setting]
    async with AsyncEngine(folder, **given) as engine:
        answers = await asyncio.gather(*(engine.generate(p, GREEDY) for p in mixed_prompts()))
        again = await engine.generate(mixed_prompts()[0], GREEDY)
        report = await engine.report()
    assert [answer.token_ids for answer in answers] == expected
    assert again.token_ids == expected[0]
    assert report["free"] + report["cached"] == report["num_blocks"]
    if setting == "preemption":
        assert report["preemptions"] > 0
    if setting == "drafts":
        assert report["drafted_ngram"] > 0
    (runner,) = runners
    if runner.graphs is not None:
        assert runner.graphs.captures > 1


QUESTIONS: tuple[dict[str, Any], ...] = (
    {"grammar": choice(["certainly", "certainly not", "perhaps"])},
    {"grammar": regex(r"The answer is [0-9]{1,3}\.")},
    {"grammar": json_schema({"type": "object", "properties": {"name": {"type": "string"}}})},
    {},
    {"params": SamplingParams(temperature=0.8, top_p=0.9, seed=11, max_tokens=30)},
    {"params": SamplingParams(temperature=0, repetition_penalty=1.4, presence_penalty=0.5)},
    {"params": SamplingParams(temperature=1.2, top_k=20, seed=12, max_tokens=30)},
)


async def ask(**config: Any) -> list[str]:
    async with AsyncEngine(max_sequences=8, **config) as engine:
        answers = await asyncio.gather(
            *(
                engine.generate(
                    f"<|im_start|>user\nSay {index}<|im_end|>\n<|im_start|>assistant\n",
                    **({"params": SamplingParams(temperature=0, max_tokens=30)} | question),
                )
                for index in range(2)
                for question in QUESTIONS
            )
        )
    return [answer.text for answer in answers]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_demo_model_answers_as_on_the_cpu(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grammars, drafts and sampling: both compute in float32, and no answer is near a tie."""
    expected = await ask()
    use_torch(monkeypatch, kind)
    assert await ask() == expected
    assert await ask(speculation=()) == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_no_block_stays_held_behind_leaving_clients_and_failed_steps(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runners = use_torch(monkeypatch, kind)
    long = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    short = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    async with AsyncEngine(max_sequences=8) as engine:
        wanted = (await engine.generate("Go on", short)).token_ids
        running = [engine.generate("Go on", long) for _ in range(4)]
        await anext(running[0])
        for generation in running:
            generation.abort()
            with pytest.raises(RequestAbortedError):
                await generation
        for part in ("forward", "logits"):
            await settled(engine)
            model: Any = runners[0]._model
            right = getattr(model, part)

            def fail(*_: Any, part: str = part, right: Callable[..., Any] = right) -> None:
                setattr(runners[0]._model, part, right)
                raise RuntimeError("injected")

            setattr(model, part, fail)
            with pytest.raises(RequestFailedError):
                await engine.generate([77, *range(300, 320)], short)
            assert (await engine.generate("Go on", short)).token_ids == wanted
        await assert_nothing_is_left(engine)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drafts", [(), ("ngram",)], ids=["no drafts", "drafts"])
async def test_log_probabilities_are_those_of_transformers(
    kind: str, drafts: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the model: penalties are undone before they are read."""
    runners = use_torch(monkeypatch, kind)
    model = random_llama(tmp_path, seed=3)
    prompts = [[(7 * i * i + 3 * j) % 256 for j in range(5 + 9 * i)] for i in range(4)]
    given: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
    async with AsyncEngine(
        tmp_path, max_sequences=3, speculation=drafts, _adaptive_drafts=False
    ) as engine:
        for rules, top in itertools.product(RULES, (0, 3)):
            params = SamplingParams(logprobs=top, **given, **rules)
            answers = await asyncio.gather(*(engine.generate(p, params) for p in prompts))
            for prompt, answer in zip(prompts, answers, strict=True):
                assert_those_of(model, prompt, answer, top, 2e-4)
    if runners[0].graphs is not None:
        assert runners[0].graphs.captures > 2


async def test_the_engine_says_what_attends(monkeypatch: pytest.MonkeyPatch) -> None:
    use_torch(monkeypatch)
    async with AsyncEngine() as engine:
        assert engine.info.notes == {"attention": "torch"}
        assert engine.info.device == "cpu, float32, torch"


def test_torch_runner_is_told_apart_from_the_rust_runner(demo_model: Path) -> None:
    config = EngineConfig(device="cpu", num_blocks=8)
    ours, theirs = start(config), CpuRunner.from_config(config)
    assert ours.info == theirs.info
    assert ours.layout.fields() == theirs.layout.fields()
    assert list(itertools.chain(ours.notes)) == ["attention"]
    ours.close()
    theirs.close()
