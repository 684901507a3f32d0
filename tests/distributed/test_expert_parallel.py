"""Ranks that have whole experts compute what one rank does, and read no others."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.demo import MODEL_PATH
from pyengine.distributed.parallel_runner import ParallelRunner
from pyengine.errors import ConfigError
from pyengine.model.spec import describe
from pyengine.model.weights.loader import open_weights
from pyengine.settings.config import EngineConfig
from tests.distributed.test_parallel_model import logits
from tests.distributed.thread_ranks import thread_runner, together
from tests.model.families import MIXTURES, make_family
from tests.model.llamas import make_llama, prompts
from tests.model.test_architectures import edit
from tests.model.torch_steps import GreedyRunner

EXPERTS, INNER = "model.layers.0.block_sparse_moe.experts", 72
QUICK = ("gpt-oss", "llama 4")
KERNELS = {"torch": False, "rust": True}


@pytest.mark.parametrize("cpu_kernels", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MIXTURES],
)
def test_two_ranks_have_the_logits_of_one(name: str, cpu_kernels: bool, tmp_path: Path) -> None:
    make_family(tmp_path, name)
    alone = logits(tmp_path, None, cpu_kernels=cpu_kernels)
    first, second = together(
        2, lambda group: logits(tmp_path, group, cpu_kernels=cpu_kernels, expert_parallel=True)
    )
    assert first.equal(second)
    assert (first - alone).abs().max() < 1e-3 * alone.std()


def test_a_rank_reads_its_own_experts_alone(tmp_path: Path) -> None:
    make_family(tmp_path, "mixtral")
    with open_weights(describe(EngineConfig(model=str(tmp_path))), rank=1, ranks=3) as weights:
        with weights.whole_ones(6) as mine:
            matrix = weights.outputs({f"{EXPERTS}.2.w1.weight": INNER}, 64)
        assert (mine, matrix.shape) == (range(2, 4), (INNER, 64))
        assert weights.num_parameters == 3 * INNER * 64
        halved = weights.outputs({"model.layers.0.self_attn.q_proj.weight": 64}, 64)
        assert halved.shape[0] == 22


@pytest.fixture
def ranks_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParallelRunner, "start", thread_runner)


@pytest.mark.usefixtures("ranks_are_threads")
async def test_an_engine_answers_as_one_of_one_rank(tmp_path: Path) -> None:
    make_family(tmp_path, "qwen3-moe")
    shutil.copy(MODEL_PATH / "tokenizer.json", tmp_path)
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

    async def answers(**config: Any) -> list[list[int]]:
        async with AsyncEngine(
            str(tmp_path), device="cpu", threads=1, kv_cache_mib=8, **config
        ) as engine:
            return [(await engine.generate(asked, greedy)).token_ids for asked in prompts(3)]

    assert await answers(tensor_parallel=2, expert_parallel=True) == await answers()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (None, {}, "has no experts that ranks could divide; leave 'expert_parallel' out"),
        ("mixtral", {"num_local_experts": 5}, "5 experts of .* cannot be divided by 2 ranks"),
    ],
)
def test_experts_that_ranks_do_not_divide_are_refused(
    name: str | None, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    if name is None:
        make_llama(tmp_path)
    else:
        make_family(tmp_path, name)
    edit(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        together(2, lambda group: GreedyRunner(tmp_path, group=group, expert_parallel=True))
