"""The Triton sampler and its reference give the tokens of the Rust one, whatever is drafted."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pyengine._core import step_numbers
from pyengine.kernels.sampling import cut, verify
from pyengine.kernels.sampling import reference as sampling_reference
from pyengine.kernels.sampling import sample as sampling
from pyengine.kernels.sampling.inputs import SamplingInputs
from tests.kernels.backends import DEVICE, as_tensor, backend, check_kept
from tests.model.draws import (
    SMALL_RULES,
    Language,
    Step,
    assert_drawn_from,
    generate,
    on_cpu,
    pack,
    random_drafts,
    random_logits,
    random_step,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def assert_tokens_of_rust(step: Step, reference: bool, dtype: torch.dtype, seed: int) -> None:
    random = np.random.default_rng(seed)
    arrays = step.arrays()
    vocabulary = arrays["mask"].shape[1] * 32 - int(random.integers(0, 32))
    logits = random_logits(random, len(arrays["logit_row"]), vocabulary)
    rounded = torch.from_numpy(logits).to(dtype).float().numpy()
    tokens, counts = on_cpu(step, rounded)
    theirs, their_counts = backend(reference, dtype)(step, rounded)
    assert theirs.tolist() == tokens.tolist()
    assert their_counts.tolist() == counts.tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 31, 128, 700, 3000])
def test_the_reference_gives_the_tokens_of_rust(vocabulary: int, dtype: torch.dtype) -> None:
    step = random_step(np.random.default_rng(vocabulary), 300, vocabulary)
    assert_tokens_of_rust(step, True, dtype, vocabulary)


@pytest.mark.parametrize(
    ("vocabulary", "dtype"),
    [
        *[(vocabulary, torch.float32) for vocabulary in (1, 31, 300, 3000)],
        *[(200, t) for t in DTYPES],
    ],
)
def test_triton_gives_the_tokens_of_rust(vocabulary: int, dtype: torch.dtype) -> None:
    step = random_step(np.random.default_rng(vocabulary + 1), 7, vocabulary)
    assert_tokens_of_rust(step, False, dtype, vocabulary)


@pytest.mark.parametrize(
    ("vocabulary", "dtype", "parts"),
    [(129, torch.float32, 2), (600, torch.bfloat16, 8), (600, torch.float32, 2)],
)
def test_programs_that_share_rows_give_the_tokens_of_rust(
    vocabulary: int, dtype: torch.dtype, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = random_step(np.random.default_rng(vocabulary + parts), 6, vocabulary)
    # Some rows without the rules whose kernels are slow where they are interpreted.
    step.top_k[3:], step.top_p[3:] = 0, 1.0
    rows = len(step.arrays()["logit_row"])
    # The parts of a large vocabulary, of a small one.
    monkeypatch.setattr(sampling, "BLOCK", 128)
    monkeypatch.setattr(sampling, "MAX_PARTS", parts)
    assert sampling.parts_of(rows, vocabulary) == parts
    assert_tokens_of_rust(step, False, dtype, vocabulary)


def crowded_logits(kind: str, rows: int, vocabulary: int) -> NDArray[np.float32]:
    """Rows whose threshold is hard to find: many logits in a bin, or all of them."""
    random = np.random.default_rng(vocabulary)
    if kind == "equal":
        return np.full((rows, vocabulary), 2.5, np.float32)
    if kind == "ties":
        return random.integers(-2, 3, (rows, vocabulary)).astype(np.float32)
    if kind == "narrow":
        return random.normal(0.0, 1e-3, (rows, vocabulary)).astype(np.float32)
    return random.normal(0.0, 1e30, (rows, vocabulary)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("room", [8, 1024], ids=["too many to gather", "gathered"])
@pytest.mark.parametrize("kind", ["equal", "ties", "narrow", "wide"])
def test_rows_are_cut_where_rust_cuts_them(
    kind: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By top-k, top-p and both, over two programs a row; the search takes over from the bins."""
    monkeypatch.setattr(cut, "ROOM", room)
    monkeypatch.setattr(cut, "BINS", 64)
    monkeypatch.setattr(sampling, "BLOCK", 128)
    monkeypatch.setattr(sampling, "MAX_PARTS", 2)
    rules = [
        (40, 1.0, 1.0), (0, 0.7, 1.0), (90, 0.5, 0.6), (199, 0.999, 3.0),
        (1, 0.3, 1e30), (0, 1e-6, 1e-3), (150, 0.9, 1e-38),
    ]  # fmt: skip
    top_k, top_p, temperature = (np.array(column) for column in zip(*rules, strict=True))
    step = Step(
        len(rules),
        top_k=top_k.astype(np.int32),
        top_p=top_p.astype(np.float32),
        temperature=temperature.astype(np.float32),
    )
    host = crowded_logits(kind, len(rules), 200)
    inputs, logits = SamplingInputs.from_numpy(step.arrays(), DEVICE), as_tensor(host)
    tokens = torch.full((len(rules),), -7, dtype=torch.int32, device=DEVICE)
    scratch = sampling.SamplingScratch.for_rows(len(rules), 200, DEVICE)
    sampling.sample(inputs, logits, tokens, scratch=scratch)
    assert tokens.tolist() == on_cpu(step, host)[0].tolist()

    weight = sampling_reference.weights(logits, inputs.rule("temperature"))
    limits = [inputs.rule(name) for name in ("top_k", "top_p", "min_p")]
    kept = sampling_reference.kept_tokens(logits, weight, *limits)
    level, last = scratch.cut.level[:, None], scratch.cut.last[:, None]
    ids = torch.arange(200, device=DEVICE)
    ours = (logits > level) | ((logits == level) & (ids <= last))
    assert (ours & (weight >= 2.0**-126)).tolist() == kept.tolist()


@pytest.mark.skipif(DEVICE != "cpu", reason="counts what the interpreter does")
@pytest.mark.parametrize("rules", [{"top_k": 40}, {"top_p": 0.95}], ids=str)
def test_few_tokens_are_added_to_bins(
    rules: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those above the last bin, whose tokens a program sums up by itself."""
    from triton.runtime.interpreter import InterpreterBuilder

    added = 0
    theirs = InterpreterBuilder.create_atomic_rmw

    def count(self: Any, operation: Any, where: Any, what: Any, mask: Any, *more: Any) -> Any:
        nonlocal added
        added += int(np.sum(mask.data))
        return theirs(self, operation, where, what, mask, *more)

    monkeypatch.setattr(InterpreterBuilder, "create_atomic_rmw", count)
    monkeypatch.setattr(cut, "BINS", 256)
    logits = np.random.default_rng(1).normal(0.0, 2.5, (1, 3000)).astype(np.float32)
    logits[0, 7] = 17.0
    assert (np.exp(logits - 17.0) > 2.0**-30).sum() > 2800
    step = Step(1, **rules)
    tokens, _ = backend(reference=False)(step, logits)
    assert tokens.tolist() == on_cpu(step, logits)[0].tolist()
    assert 0 < added < 400


def test_number_of_programs_that_share_a_row() -> None:
    parts = {rows: sampling.parts_of(rows, 128_256) for rows in (1, 8, 64, 263, 264, 1000)}
    assert parts == {1: 64, 8: 64, 64: 8, 263: 2, 264: 1, 1000: 1}
    assert sampling.parts_of(1, 1) == 1
    scratch = sampling.SamplingScratch.for_rows(300, 128_256, DEVICE)
    assert len(scratch.winner) == max(
        rows * sampling.parts_of(rows, 128_256) for rows in range(1, 301)
    )


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("rules", SMALL_RULES, ids=str)
def test_three_tokens_of_the_reference(rules: dict[str, Any], masked: bool) -> None:
    language, sequences = Language(3), 4_000
    given: dict[str, Any] = {
        "masked": masked,
        "sequences": sequences,
        "drafts": random_drafts(sequences),
    }
    drawn, per_step = generate(backend(reference=True), language, rules, **given)
    assert_drawn_from(drawn, language.joint(rules, masked))
    assert per_step > 1.05
    assert (drawn == generate(on_cpu, language, rules, **given)[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
def test_three_tokens_of_triton(masked: bool) -> None:
    """Few, for they are interpreted; on a GPU tests/gpu draws as many as the distribution needs."""
    language, sequences = Language(4), len(SMALL_RULES)
    plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
    plain |= {"top_n_sigma": 0.0, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0}
    plain |= {"xtc_probability": 0.0, "xtc_threshold": 0.1}
    each = [plain | SMALL_RULES[sequence % len(SMALL_RULES)] for sequence in range(sequences)]
    rules = {name: np.array([rule[name] for rule in each]) for name in plain}
    given: dict[str, Any] = {
        "masked": masked,
        "sequences": sequences,
        "drafts": random_drafts(sequences),
    }
    drawn, _ = generate(backend(reference=False), language, rules, **given)
    assert (drawn == generate(on_cpu, language, rules, **given)[0]).all()


@pytest.mark.parametrize("how", ["torch", "triton", "shared"])
def test_extremes(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MAX_PARTS", 4)
    monkeypatch.setattr(sampling, "BLOCK", 128)
    # Shared rows are as much wider as it takes.
    wide = 60 if how == "shared" else 1
    sampler = backend(how == "torch")
    nan, inf = np.nan, np.inf
    rows = [
        [nan] * 5, [-inf] * 5, [nan, -inf, 2, -inf, nan], [nan, 5, 2, inf, -inf],
        [1, inf, inf, 0, 0], [-0.0, 0.0, -1, -0.0, -2],
    ]  # fmt: skip
    logits = np.full((len(rows), 4 * wide + 1), -inf, np.float32)
    logits[:, ::wide] = rows
    several: list[dict[str, Any]] = [
        {"temperature": 0.0}, {}, {"temperature": 1e-38}, {"top_k": 2, "top_p": 0.9},
        {"typical_p": 0.5}, {"top_n_sigma": 1.0, "dynatemp_range": 0.5}, {"dynatemp_range": 2.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.2},
    ]  # fmt: skip
    for rules in several:
        step = Step(len(rows), **rules)
        tokens = sampler(step, logits)[0]
        assert tokens.tolist() == on_cpu(step, logits)[0].tolist()
        assert tokens[:4].tolist() == [-1, -1, 2 * wide, 3 * wide]
    only = np.zeros((6, logits.shape[1]), bool)
    only[:, ::wide] = np.eye(6, 5, dtype=bool)
    tokens = sampler(Step(6, mask=pack(only)), logits)[0]
    assert tokens.tolist() == [0, wide, 2 * wide, 3 * wide, 4 * wide, -1]


@pytest.mark.parametrize("reference", [True, False], ids=["torch", "triton"])
def test_more_rows_than_are_verified_at_a_time(reference: bool) -> None:
    random = np.random.default_rng(12)
    rows = 600
    lengths = random.integers(1, 6, rows).astype(np.int32)
    total = int(lengths.sum())
    step = Step(
        rows,
        lengths=lengths,
        temperature=0.0,
        token_ids=random.integers(0, 2, total + 1).astype(np.int32),
        logit_token=np.arange(total, dtype=np.int32),
    )
    tokens = torch.from_numpy(random.integers(-1, 2, total).astype(np.int32))
    logits = np.full((total, 2), -np.inf, np.float32)
    logits[tokens >= 0, tokens[tokens >= 0]] = 1.0
    counts = on_cpu(step, logits)[1]
    assert set(counts.tolist()) == {1, 2, 3, 4, 5}
    # Sampling so many rows is slow where Triton is interpreted: what it gives is known here.
    inputs = SamplingInputs.from_numpy(step.arrays(), DEVICE)
    compare = verify.verify_reference if reference else verify.verify
    shapes = (rows, total, rows)
    out = [torch.full((n,), -7, dtype=torch.int32, device=DEVICE) for n in shapes]
    sequence = torch.arange(rows, dtype=torch.int32, device=DEVICE).flip(0)
    header = torch.zeros(len(step_numbers()), dtype=torch.int64, device=DEVICE)
    header[step_numbers()["num_sampled"]] = rows
    compare(inputs, header, as_tensor(step.token_ids), tokens.to(DEVICE), sequence, *out)
    assert out[0].tolist() == counts.tolist()
    check_kept(step, tokens.numpy(), *(tensor.cpu().numpy() for tensor in out))


def test_a_chunk_of_the_logits_rows() -> None:
    step = random_step(np.random.default_rng(2), 4, 90)
    arrays = step.arrays()
    logits = random_logits(np.random.default_rng(3), len(arrays["logit_row"]), 90)
    whole = on_cpu(step, logits)[0]
    inputs = SamplingInputs.from_numpy(arrays, DEVICE)
    tokens = torch.full((len(logits),), -7, dtype=torch.int32, device=DEVICE)
    sampling.sample(inputs, torch.from_numpy(logits[2:5]).to(DEVICE), tokens, first=2)
    expected = np.full(len(logits), -7)
    expected[2:5] = whole[2:5]
    assert tokens.tolist() == expected.tolist()


def test_arguments_are_checked() -> None:
    step = Step(2)
    inputs = SamplingInputs.from_numpy(step.arrays(), DEVICE)
    tokens = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="float64"):
        sampling.sample(inputs, torch.zeros(2, 5, dtype=torch.float64, device=DEVICE), tokens)
    with pytest.raises(ValueError, match="in one piece"):
        sampling.sample(inputs, torch.zeros(5, 2, device=DEVICE).T, tokens)
    with pytest.raises(ValueError, match="in one piece"):
        sampling.sample(inputs, torch.zeros(2, 0, device=DEVICE), tokens)
    scratch = sampling.SamplingScratch.for_rows(1, 3000, DEVICE)
    with pytest.raises(ValueError, match="less than 2 rows"):
        sampling.sample(inputs, torch.zeros(2, 3000, device=DEVICE), tokens, scratch=scratch)
