"""Layers with a state in torch: what transformers says, however a prompt is cut, with drafts that
come or do not, and begun from snapshots.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pyengine._core import NO_SLOT, step_numbers
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.state_parts import DecaySum, DeltaRule
from pyengine.model.cache_layers import State
from pyengine.model.spec import describe
from pyengine.model.torch.layers.states import TorchStates
from pyengine.settings.config import EngineConfig
from tests.model.hybrids import HYBRIDS, HYBRIDS_WITH_EYES
from tests.model.llamas import Loop, Sequence, make_model, prompts
from tests.model.torch_steps import GreedyRunner

DRAFTS = 3
STATE = State(channels=40, kernel=4, heads=4, key_dim=8, value_dim=6, key_heads=2, gates=4 + 4 * 8)
NUMBERS = np.random.default_rng(2)


def floats(*shape: int) -> Any:
    return NUMBERS.standard_normal(shape, np.float32)


def states(slots: int = 8) -> TorchStates:
    info: Any = SimpleNamespace(layers=(STATE,), max_draft=DRAFTS)
    pool: Any = SimpleNamespace(states=torch.zeros(slots, STATE.floats(DRAFTS)))
    return TorchStates(info, 1, pool, torch.device("cpu"))


WEIGHT, BIAS = floats(40, 4), floats(40)
DIMS: dict[str, Any] = {"key_heads": 2, "value_heads": 4, "key_dim": 8, "value_dim": 6}
SUM: dict[str, Any] = {"heads": 4, "groups": 2, "key_dim": 8, "value_dim": 6}
RATE = np.exp(floats(4) - 1)
BY_HEAD = DeltaRule(**DIMS, rate=RATE, bias=floats(4), strength=2.0)
BOUNDED = DeltaRule(**DIMS, rate=RATE, bias=floats(32), bound=-3.0)
BY_CHANNEL = DeltaRule(**DIMS, rate=RATE, bias=floats(32))
STEPS = DecaySum(**SUM, rate=RATE, bias=floats(4), skip=floats(4))
BY_ROW = DecaySum(**SUM, rate=np.exp(floats(32) - 1), bias=floats(4))
FIXED = DecaySum(**SUM, rate=RATE)
OPERATIONS: dict[str, Callable[[TorchStates], Any]] = {
    "convolution": lambda made: made.convolution(0, WEIGHT, BIAS, "silu"),
    "delta rule": lambda made: made.delta_rule(0, BY_HEAD),
    "delta rule, decays of channels": lambda made: made.delta_rule(0, BY_CHANNEL),
    "delta rule, bounded decays": lambda made: made.delta_rule(0, BOUNDED),
    "decaying sum": lambda made: made.decay_sum(0, STEPS),
    "decaying sum, rates of rows": lambda made: made.decay_sum(0, BY_ROW),
    "decaying sum at a fixed rate": lambda made: made.decay_sum(0, FIXED),
}
WIDTHS = {
    "convolution": (40, 0, 40),
    "delta rule": (2 * 16 + 24, 8, 24),
    "delta rule, decays of channels": (2 * 16 + 24, 4 + 32, 24),
    "delta rule, bounded decays": (2 * 16 + 24, 4 + 32, 24),
    "decaying sum, rates of rows": (24 + 2 * 16, 4, 24),
    "decaying sum": (24 + 2 * 16, 4, 24),
    "decaying sum at a fixed rate": (24 + 2 * 16, 0, 24),
}
"""Numbers of a token, of its gates, and of what comes out."""


def run(made: TorchStates, name: str, rows: list[dict[str, Any]]) -> list[torch.Tensor]:
    """The outputs of rows: each with its ``tokens``, ``gates``, and fields where they differ."""
    counts = [len(row["tokens"]) for row in rows]
    fields = {
        field: torch.tensor([row.get(field, otherwise) for row in rows], dtype=torch.int32)
        for field, otherwise in {
            "state_slot": 0,
            "state_source": 0,
            "state_accepted": 0,
            "state_drafts": 0,
            "snapshot_slot": NO_SLOT,
            "snapshot_tokens": 0,
        }.items()
    }
    header = torch.zeros(32, dtype=torch.int32)
    header[step_numbers()["num_rows"]] = len(rows)
    starts = torch.tensor(np.cumsum([0, *counts]), dtype=torch.int32)
    step = SimpleNamespace(header=header, query_start=starts, **fields)
    width, gate_width, out_width = WIDTHS[name]
    tokens, out = torch.cat([row["tokens"] for row in rows]), torch.zeros(sum(counts), out_width)
    assert tokens.shape[1] == width
    given: list[Any] = [Buffer(tokens, tokens)]
    if name != "convolution":
        gates = torch.cat([row["gates"] for row in rows]) if gate_width else None
        given.append(() if gates is None else (Buffer(gates, gates),))
    OPERATIONS[name](made)(step, *given, Buffer(out, out), sum(counts))
    return list(out.split(counts))


def sequence(name: str, count: int) -> dict[str, torch.Tensor]:
    width, gate_width, _ = WIDTHS[name]
    return {
        "tokens": torch.from_numpy(floats(count, width)),
        "gates": torch.from_numpy(floats(count, gate_width)),
    }


def part(whole: dict[str, torch.Tensor], start: int, stop: int) -> dict[str, Any]:
    return {kind: rows[start:stop] for kind, rows in whole.items()}


def whole(name: str, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
    return run(states(), name, [{**tokens, "state_source": NO_SLOT}])[0]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for torch's rounding, which depends on where a vector ends."""
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OPERATIONS)
def test_outputs_are_the_same_however_a_sequence_is_cut(name: str) -> None:
    """In company of others, with drafts of which some come and others do not."""
    dice = random.Random(name)
    for _ in range(8):
        made = states()
        lines = [sequence(name, dice.randint(1, 30)) for _ in range(3)]
        expected = [whole(name, line) for line in lines]
        done, pending, source = [0] * 3, [0] * 3, [NO_SLOT] * 3
        found: list[list[torch.Tensor]] = [[], [], []]
        while any(done[at] < len(line["tokens"]) for at, line in enumerate(lines)):
            rows = []
            for at, line in enumerate(lines):
                left = len(line["tokens"]) - done[at]
                if not left:
                    continue
                count = dice.randint(1, left)
                right = dice.randint(0, min(DRAFTS, count - 1))
                wrong = sequence(name, dice.randint(0, DRAFTS - right))
                row = part(line, done[at], done[at] + count)
                row = {kind: torch.cat((row[kind], wrong[kind])) for kind in row}
                drafts = right + len(wrong["tokens"])
                places = {"state_slot": at, "state_source": source[at]}
                rows.append(
                    (at, count, right, {**row, **places, "state_accepted": pending[at],
                                        "state_drafts": drafts})
                )  # fmt: skip
            for (at, count, right, _), outputs in zip(
                rows, run(made, name, [row for *_, row in rows]), strict=True
            ):
                found[at].append(outputs[:count])
                done[at], pending[at], source[at] = done[at] + count, right, at
        for pieces, theirs in zip(found, expected, strict=True):
            close(torch.cat(pieces), theirs)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("behind", [0, 3, 5])
def test_another_sequence_goes_on_from_a_snapshot(name: str, behind: int) -> None:
    """Behind accepted drafts alone, within a row, and at its end."""
    made, tokens, other = states(), sequence(name, 14), sequence(name, 6)
    run(made, name, [{**part(tokens, 0, 9), "state_source": NO_SLOT, "state_drafts": 2}])
    snapshot = {"snapshot_slot": 5, "snapshot_tokens": behind, "state_accepted": 2}
    run(made, name, [{**part(tokens, 9, 14), **snapshot}])
    again = {kind: torch.cat((tokens[kind][: 9 + behind], other[kind])) for kind in tokens}
    for slot in (6, 7):  # it stays as it is
        rows = run(made, name, [{**other, "state_slot": slot, "state_source": 5}])
        close(rows[0], whole(name, again)[9 + behind :])


@pytest.mark.parametrize("name", HYBRIDS)
def test_greedy_tokens_and_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    kind, own = HYBRIDS[name]
    model = make_model(tmp_path, kind, **own | {"initializer_range": 0.08})
    for chunk in (1000, 8):
        runner = GreedyRunner(tmp_path, num_blocks=2000)
        for prompt in prompts(3):
            sequence, loop = Sequence(list(prompt), 0), Loop(runner, chunk)
            while len(sequence.tokens) < len(prompt) + 6:
                loop.step([sequence])
                if len(sequence.tokens) > len(prompt):
                    with torch.inference_mode():
                        expected = model(torch.tensor([sequence.tokens[:-1]])).logits[0, -1]
                    assert (runner.logits[0] - expected).abs().max() < 1e-4 * expected.std()
        asked = prompts(6)
        together = Loop(runner, chunk).generate(asked, 8)
        alone = [Loop(runner, 5).generate([prompt], 8)[0] for prompt in asked]
        assert together == alone


@pytest.mark.parametrize("name", HYBRIDS_WITH_EYES)
def test_text_part_equals_transformers(name: str, tmp_path: Path) -> None:
    kind, given = HYBRIDS_WITH_EYES[name]
    settings = {key: value for key, value in given.items() if key != "config"}
    torch.manual_seed(3)
    model = kind(given["config"](**settings, tie_word_embeddings=False)).eval()
    model.save_pretrained(tmp_path)
    runner = GreedyRunner(tmp_path, num_blocks=2000)
    for prompt in prompts(3):
        sequence = Sequence(list(prompt), 0)
        Loop(runner).step([sequence])
        with torch.inference_mode():
            expected = model(input_ids=torch.tensor([prompt])).logits[0, -1]
        assert (runner.logits[0] - expected).abs().max() < 1e-4 * expected.std()


def test_experts_may_be_in_one_tensor_of_a_layer(tmp_path: Path) -> None:
    """As files on the hub have them; transformers writes each by itself."""
    kind, own = HYBRIDS["qwen3.5, experts"]
    make_model(tmp_path, kind, **own)
    asked, path = prompts(2), tmp_path / "model.safetensors"
    expected = Loop(GreedyRunner(tmp_path, num_blocks=2000)).generate(asked, 4)
    tensors = load_file(path)
    for mlp in {name.split("experts.")[0] for name in tensors if ".experts." in name}:
        gate, up, down = (
            torch.stack([tensors.pop(f"{mlp}experts.{at}.{which}_proj.weight") for at in range(6)])
            for which in ("gate", "up", "down")
        )
        tensors[f"{mlp}experts.gate_up_proj"] = torch.cat((gate, up), 1)
        tensors[f"{mlp}experts.down_proj"] = down
    save_file(tensors, path)
    assert Loop(GreedyRunner(tmp_path, num_blocks=2000)).generate(asked, 4) == expected


def test_a_kimi_linear_as_moonshot_publishes_it(tmp_path: Path) -> None:
    """Its config.json counts layers from 1, and dense layers have a name of their own."""
    kind, own = HYBRIDS["kimi linear"]
    make_model(tmp_path, kind, **own)
    asked, path = prompts(2), tmp_path / "config.json"
    expected = Loop(GreedyRunner(tmp_path, num_blocks=2000)).generate(asked, 4)
    config = json.loads(path.read_text())
    for name in ("layer_types", "mlp_layer_types"):
        del config[name]
    linear = {"full_attn_layers": [2, 4], "kda_layers": [1, 3]}
    linear["num_heads"], linear["head_dim"], linear["short_conv_kernel_size"] = (
        config.pop(f"linear_{name}") for name in ("num_heads", "head_dim", "conv_kernel_dim")
    )
    path.write_text(json.dumps(config | {"linear_attn_config": linear, "first_k_dense_replace": 1}))
    tensors = {
        name.replace("layers.0.block_sparse_moe.", "layers.0.mlp."): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert Loop(GreedyRunner(tmp_path, num_blocks=2000)).generate(asked, 4) == expected


def test_config_says_what_it_leaves_out(tmp_path: Path) -> None:
    """As transformers' classes have it: three layers with a state to one that attends."""
    (tmp_path / "config.json").write_text(
        '{"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",'
        '"text_config": {"vocab_size": 99}}'
    )
    info = describe(EngineConfig(model=str(tmp_path), load_format="dummy")).info
    kinds = [type(layer).__name__ for layer in info.layers]
    assert kinds == ["State", "State", "State", "Keys"] * 8
    assert info.layers[0] == State(
        channels=8192, kernel=4, heads=32, key_dim=128, value_dim=128, key_heads=16, gates=64
    )
    assert info.attention_layers[3].head_dim == 256
