"""The runner as a GPU has it, every kernel of it Triton's, interpreted: that the parts fit.

Kernels alone are held to their references in tests/kernels; here they run in the engine's own
steps, with what the planner, graphs' buckets and overlapping steps give them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pyengine import AsyncEngine, SamplingParams
from pyengine.grammar import choice
from pyengine.kernels import feed, hand_over
from pyengine.kernels.layers.packed_product import packed_product
from pyengine.kernels.sampling import greedy as greedy_kernels
from pyengine.kernels.sampling import penalties, top_logprobs, verify
from pyengine.kernels.sampling import reference as sampling_reference
from pyengine.kernels.sampling import sample as sampling
from pyengine.model.torch.attention.by_kind import AttentionByKind
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.attention.triton import TritonAttention
from pyengine.model.torch.device.ops import KERNELS, TorchOps
from pyengine.model.torch.layers import packed_weights, parts
from pyengine.model.torch.layers.parts import TorchParts
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.cpu import start_on_cpu
from pyengine.settings.choices import Proposer
from pyengine.settings.config import EngineConfig
from tests.model.families import ALL_PARTS, FAMILIES
from tests.models import greedy, mixed_prompts, random_llama, random_model
from tests.test_logprobs import assert_those_of
from tests.torch_devices import OverlappingQueue, RecordingCapturer

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="compiled here, and tried by tests/gpu"),
    pytest.mark.timeout(600),  # the interpreter takes seconds where a machine has little to spare
]

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
TOKENS = 10


@pytest.fixture
def calls() -> Counter[str]:
    """How often each kernel was called."""
    return Counter()


@pytest.fixture
def runners(calls: Counter[str], monkeypatch: pytest.MonkeyPatch) -> list[TorchRunner]:
    """Engines that are started in threads get such runners, which the list then has."""

    def counted(name: str, kernel: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **given: Any) -> None:
            calls[name] += 1
            kernel(*args, **given)

        return call

    for module, name in (
        (penalties, "apply_penalties"),
        (penalties, "restore"),
        (feed, "feed"),
        (greedy_kernels, "greedy"),
        (top_logprobs, "top_logprobs"),
        (verify, "verify"),
    ):
        monkeypatch.setattr(module, f"{name}_reference", counted(name, getattr(module, name)))
    for name in ("hand_over", "take_tokens"):
        kernel = counted(name, getattr(hand_over, name))
        monkeypatch.setattr(f"pyengine.model.torch.draft.{name}_reference", kernel)
    scratch = sampling.SamplingScratch.for_rows(64, 512, "cpu")
    sample = partial(sampling.sample, scratch=scratch)
    monkeypatch.setattr(sampling_reference, "sample", counted("sample", sample))
    monkeypatch.setattr("pyengine.model.torch.layers.parts.torch_ops", lambda _device: KERNELS)
    made: list[TorchRunner] = []

    def attention(asks: AttentionSpec) -> TritonAttention:
        return TritonAttention(asks, torch.device("cpu"), processors=2)

    def load(config: EngineConfig, progress: object = None) -> TorchRunner:
        made.append(
            start_on_cpu(
                config,
                attention=attention,
                capturer=RecordingCapturer(),
                queue=OverlappingQueue(),
            )
        )
        return made[-1]

    monkeypatch.setattr("pyengine.engine.settled", lambda config: config)
    monkeypatch.setattr("pyengine.engine.load_runner", load)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("speculation", "kernels"), [(("ngram",), {"verify", "greedy"}), ((), {"feed", "greedy"})]
)
async def test_tokens_are_those_of_transformers(
    speculation: tuple[Proposer, ...],
    kernels: set[str],
    runners: list[TorchRunner],
    calls: Counter[str],
    tmp_path: Path,
) -> None:
    """Prompts in pieces, beside decodes and drafts, in eager steps and in replayed ones.

    Steps without drafts are fed with tokens that have not come back.
    """
    model = random_llama(tmp_path, **TINY)
    prompts = [prompt[:24] for prompt in mixed_prompts()[2:5]]
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    async with AsyncEngine(
        tmp_path, max_sequences=2, kv_cache_mib=1, prefill_chunk=16, speculation=speculation,
        _adaptive_drafts=False,
    ) as engine:  # fmt: skip
        answers = await asyncio.gather(*(engine.generate(p, params) for p in prompts))
        report = await engine.report()
    assert [answer.token_ids for answer in answers] == greedy(model, prompts, TOKENS)
    assert report["free"] + report["cached"] == report["num_blocks"]
    assert (report.get("drafted_ngram", 0) > 0) == bool(speculation)
    graphs = runners[0].graphs
    assert graphs is not None
    assert graphs.captures > 1
    assert kernels <= calls.keys()
    assert "sample" not in calls


@pytest.mark.slow
async def test_drafts_of_a_draft_model_change_no_token(
    runners: list[TorchRunner], calls: Counter[str], tmp_path: Path
) -> None:
    """The model drafts for itself."""
    model = random_llama(tmp_path, **TINY)
    prompts = [prompt[:24] for prompt in mixed_prompts()[2:4]]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    async with AsyncEngine(
        tmp_path, max_sequences=2, kv_cache_mib=1, speculation=("draft_model",),
        draft_model=str(tmp_path), max_draft=2, _adaptive_drafts=False,
    ) as engine:  # fmt: skip
        answers = await asyncio.gather(*(engine.generate(p, params) for p in prompts))
        report = await engine.report()
    assert [answer.token_ids for answer in answers] == greedy(model, prompts, 12)
    assert report["accepted_draft_model"] > 4
    assert {"take_tokens", "hand_over"} <= calls.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_PARTS)
async def test_every_part_says_what_transformers_says(
    name: str, runners: list[TorchRunner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers' kernels too, those of experts counted in; beyond windows and chunks."""
    parts = partial(TorchParts, cpu_kernels=False)
    monkeypatch.setattr("pyengine.model.torch.start.loading.TorchParts", parts)
    kind, own = FAMILIES[name]
    model = random_model(tmp_path, kind, **own)
    prompt = mixed_prompts()[5][:29]
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    async with AsyncEngine(
        tmp_path, max_sequences=2, kv_cache_mib=1, prefill_chunk=24, speculation=(),
    ) as engine:  # fmt: skip
        answer = await engine.generate(prompt, params)
        backend = runners[0]._open_model().backend
    assert [answer.token_ids] == greedy(model, [prompt], 2)
    assert isinstance(backend, AttentionByKind) == name.startswith(("gemma 4", "llama 4"))


@pytest.mark.slow
async def test_quantized_weights_say_what_dense_ones_of_their_numbers_say(
    runners: list[TorchRunner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers in 4 bits, the head in 8: the same tokens, prompts beside decodes, drafts too."""
    random_llama(tmp_path, seed=4, **TINY)
    prompts = [prompt[:24] for prompt in mixed_prompts()[2:4]]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    launches, launched = 0, []

    def product(*given: Any) -> None:
        nonlocal launches
        launches += 1
        packed_product(*given)

    def ops(_device: torch.device) -> TorchOps:
        return replace(KERNELS, packed_product=product)

    monkeypatch.setattr(parts, "torch_ops", ops)
    monkeypatch.setattr(parts, "is_packed", lambda *_: False)
    tokens = []
    for stays in (True, False):
        monkeypatch.setattr(packed_weights, "has_products", lambda *_, stays=stays, **__: stays)
        async with AsyncEngine(
            tmp_path, max_sequences=2, kv_cache_mib=1, prefill_chunk=16, quantization="int4",
            speculation=("ngram",), _adaptive_drafts=False,
        ) as engine:  # fmt: skip
            answers = await asyncio.gather(*(engine.generate(p, params) for p in prompts))
        tokens.append([answer.token_ids for answer in answers])
        launched.append(launches)
    assert tokens[0] == tokens[1]
    assert launched[0] == launched[1] > 6  # none by dense ones


@pytest.mark.slow
async def test_rules_choose_as_on_the_cpu(
    runners: list[TorchRunner], calls: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_llama(tmp_path, seed=2, **TINY)
    given: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True}
    asked: list[dict[str, Any]] = [
        {"params": SamplingParams(temperature=1.1, seed=1, **given)},
        {"params": SamplingParams(temperature=0.9, top_p=0.7, seed=2, **given)},
        {"params": SamplingParams(temperature=0.9, top_k=7, min_p=0.02, seed=3, **given)},
        {"params": SamplingParams(temperature=0, repetition_penalty=1.5, **given)},
        {"params": SamplingParams(temperature=0.8, seed=4, logit_bias={7: 9.0}, **given)},
        {"params": SamplingParams(temperature=0, max_tokens=8), "grammar": choice(["yes", "no"])},
    ]

    async def answers() -> list[list[int]]:
        async with AsyncEngine(tmp_path, max_sequences=4, kv_cache_mib=1) as engine:
            done = await asyncio.gather(
                *(engine.generate([1, 2, 3 + i], **a) for i, a in enumerate(asked))
            )
        return [answer.token_ids for answer in done]

    ours = await answers()
    assert {"apply_penalties", "sample"} <= calls.keys()
    monkeypatch.undo()
    assert ours == await answers()


@pytest.mark.slow
async def test_log_probabilities_are_those_of_transformers(
    runners: list[TorchRunner], calls: Counter[str], tmp_path: Path
) -> None:
    model = random_llama(tmp_path, seed=3, **TINY)
    params = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, logprobs=3, presence_penalty=1.0
    )
    async with AsyncEngine(tmp_path, max_sequences=2, kv_cache_mib=1) as engine:
        answer = await engine.generate([5, 6, 7], params)
    assert_those_of(model, [5, 6, 7], answer, 3, 2e-4)
    assert {"apply_penalties", "restore", "top_logprobs"} <= calls.keys()
