"""Speculation changes no token: whatever is drafted, the sampler gives what it gives without."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.model.draws import (
    FALSE_ALARM,
    LENGTH,
    SMALL_RULES,
    VOCABULARY,
    Backend,
    Ints,
    Language,
    Step,
    assert_drawn_from,
    exact,
    generate,
    on_cpu,
    p_value,
    prefix_number,
)

SEQUENCES = 20_000


def from_another_language(step: int) -> Ints:
    """Drafts that another model samples, with random numbers of its own; some rows have fewer."""
    random = np.random.default_rng([8, step])
    other = Language(99, spread=1.0)
    p = np.exp(other.logits)
    reached = (p / p.sum(axis=1, keepdims=True)).cumsum(axis=1)
    drafts = np.zeros((SEQUENCES, LENGTH), np.int32)
    for at in range(LENGTH):
        rows = reached[prefix_number(drafts, np.full(SEQUENCES, at))]
        chosen = (random.random((SEQUENCES, 1)) > rows).sum(axis=1)
        drafts[:, at] = np.minimum(chosen, VOCABULARY - 1)
    fewer = random.integers(0, LENGTH + 1, SEQUENCES)
    return np.where(np.arange(LENGTH) < fewer[:, None], drafts, -1).astype(np.int32)


def none(step: int) -> Ints:
    return np.full((SEQUENCES, LENGTH), -1, np.int32)


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("rules", SMALL_RULES, ids=str)
def test_three_tokens_have_their_joint_distribution(rules: dict[str, Any], masked: bool) -> None:
    language = Language(1)
    given: dict[str, Any] = {"masked": masked, "sequences": SEQUENCES}
    drawn, per_step = generate(on_cpu, language, rules, drafts=from_another_language, **given)
    assert_drawn_from(drawn, language.joint(rules, masked))
    assert per_step > 1.05, "drafts were taken"

    undrafted, one = generate(on_cpu, language, rules, drafts=none, **given)
    assert one == 1.0
    assert (drawn == undrafted).all()
    # Drafts that are always right: everything in one step, and the same again.
    places = VOCABULARY ** np.arange(LENGTH)[::-1]
    known = (drawn[:, None] // places % VOCABULARY).astype(np.int32)
    again, all_at_once = generate(on_cpu, language, rules, drafts=lambda _: known, **given)
    assert all_at_once == LENGTH
    assert (drawn == again).all()


PENALTIES: list[dict[str, Any]] = [
    {"presence": 1.5},
    {"frequency": 1.2},
    {"frequency": -0.8},
    {"repetition": 1.7, "prompt": (1, 3)},
    {"repetition": 0.6},
    {"bias": {2: 1.5, 4: -2.5}},
    {"bias": {0: -100.0}},
    {"bad_word": (1, 3)},
    {"prompt": (4,), "bad_word": (4, 2)},
    {"presence": 0.5, "frequency": 0.4, "repetition": 1.4, "bias": {1: 0.7}, "bad_word": (0, 0)},
]


@pytest.mark.parametrize(
    ("rules", "penalties", "masked"),
    [
        *(({}, penalties, False) for penalties in PENALTIES),
        ({}, PENALTIES[-1], True),
        (SMALL_RULES[-1], PENALTIES[-1], False),
    ],
    ids=str,
)
def test_three_tokens_under_penalties(
    rules: dict[str, Any], penalties: dict[str, Any], masked: bool
) -> None:
    language = Language(1)
    # What is forbidden leaves something else.
    language.allowed[:, 0] = language.allowed[:, 4] = True
    given: dict[str, Any] = {"masked": masked, "sequences": SEQUENCES, "penalties": penalties}
    drawn, per_step = generate(on_cpu, language, rules, drafts=from_another_language, **given)
    assert_drawn_from(drawn, language.joint(rules, masked, penalties))
    assert per_step > 1.05, "drafts were taken"
    undrafted, _ = generate(on_cpu, language, rules, drafts=none, **given)
    assert (drawn == undrafted).all()


def first_is_believed(step: Step, logits: NDArray[Any]) -> tuple[Ints, Ints]:
    """Verifies as it must not: the first draft of a row holds whenever it is the likeliest."""
    tokens, counts = on_cpu(step, logits)
    first = step.arrays()["logit_start"][:-1]
    assert step.logit_token is not None
    drafts = step.token_ids[np.minimum(step.logit_token[first] + 1, len(step.token_ids) - 1)]
    assert step.lengths is not None
    wrong = (step.lengths > 1) & (drafts != tokens[first]) & (drafts == logits[first].argmax(1))
    tokens[first[wrong]] = drafts[wrong]
    counts[wrong] = 1
    return tokens, counts


def of_other_rules(step: Step, logits: NDArray[Any]) -> tuple[Ints, Ints]:
    """Samples behind drafts as if the rules held for the first token of a row only."""
    step.temperature = np.asarray(step.temperature) * np.where(step.position == 11, 1.0, 1.1)
    return on_cpu(step, logits)


def noise_is_used_twice(step: Step, logits: NDArray[Any]) -> tuple[Ints, Ints]:
    """Draws the second and third tokens with the noise of the places before them."""
    step.position = np.asarray(step.position) - (np.asarray(step.position) > 11)
    return on_cpu(step, logits)


@pytest.mark.parametrize(
    "wrong", [first_is_believed, of_other_rules, noise_is_used_twice], ids=lambda f: f.__name__
)
def test_a_wrong_verifier_is_found_out(wrong: Backend) -> None:
    """The test of the joint distribution can fail: each of these is nearly right."""
    language = Language(1)
    drawn, _ = generate(
        wrong, language, {}, masked=False, drafts=from_another_language, sequences=SEQUENCES
    )
    assert p_value(drawn, language.joint({}, False)) < FALSE_ALARM


def test_greedy_is_the_same_with_drafts() -> None:
    language = Language(2)
    given: dict[str, Any] = {"masked": False, "sequences": SEQUENCES}
    rules = {"temperature": 0.0}
    drawn, _ = generate(on_cpu, language, rules, drafts=from_another_language, **given)
    best = np.zeros((1, LENGTH), np.int32)
    for at in range(LENGTH):
        best[0, at] = language.logits[prefix_number(best, np.full(1, at))[0]].argmax()
    assert set(drawn.tolist()) == {int(best[0] @ (VOCABULARY ** np.arange(LENGTH)[::-1]))}


@pytest.mark.parametrize("noise", [0.05, 0.5, 1.5])
@pytest.mark.parametrize("rules", [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 8}], ids=str)
def test_a_draft_with_the_same_noise_mostly_agrees(noise: float, rules: dict[str, Any]) -> None:
    random = np.random.default_rng(6)
    target = random.normal(0, 2, 60).astype(np.float32)
    draft = target + random.normal(0, noise, 60).astype(np.float32)
    step = Step(SEQUENCES, **rules)
    chosen = [on_cpu(step, np.tile(row, (SEQUENCES, 1)))[0] for row in (target, draft)]
    same = chosen[0] == chosen[1]
    distance = np.abs(exact(target, **rules) - exact(draft, **rules)).sum() / 2
    # Of the mean of so many draws; at most 1 - d is what any coupling reaches.
    error = 4 * (0.25 / SEQUENCES) ** 0.5
    assert (1 - distance) / (1 + distance) - error <= same.mean() <= 1 - distance + error
