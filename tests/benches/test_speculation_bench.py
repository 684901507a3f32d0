"""What the bench of speculation makes of its measurements."""

import pytest

from benches.bench_speculation import CONCURRENCY, Case, Spent, noise_of, points, row, split
from benches.speculation_costs import PROMPT, Times, expected

COPY = Case("copy", ("ngram",))


def test_turns_are_as_short_as_clients_allow() -> None:
    # 7 s for 21 rounds, 20 ms a question to both: 16 in a round.
    assert split(7.0, 0.02, 1, 21) == (4, 4)
    assert split(7.0, 0.02, 4, 21) == (8, 2)
    assert split(7.0, 0.02, 16, 21) == (16, 1)
    # Each client has a question, whatever there is time for.
    assert split(7.0, 0.02, 64, 21) == (64, 1)
    assert split(-1.0, 0.02, 4, 21) == (4, 1)
    assert split(-1.0, 0.02, 1, 21) == (4, 1)


def spent(without: float, drafted: float) -> list[Spent]:
    return [
        Spent(without, without / 2, tokens=100),
        Spent(drafted, drafted / 2, tokens=100, accepted=60, rejected=20),
    ]


def test_a_row_has_an_interval_beside_its_speedup() -> None:
    found = row(COPY, 4, [spent(2.0, 1.0)] * 5 + [spent(1.0, 1.0)] * 3)
    assert found["speedup"] == pytest.approx(2**0.5)
    assert (found["low"], found["high"]) == pytest.approx((1.0, 2.0))
    assert found["cpu_speedup"] == pytest.approx(2**0.5)
    assert found["total"] == pytest.approx(13 / 8)
    # 480 of 800 tokens were drafted: 320 row steps.
    assert found["tokens_per_step"] == pytest.approx(2.5)
    assert (found["accepted"], found["drafted"], found["drafts_per_step"]) == (480, 640, 2.0)


def test_expected_speedup_counts_prompts_and_drafting() -> None:
    times: Times = {
        "model": {0: {PROMPT: 10.0 * PROMPT}, 2: {1: 100.0, 3: 160.0, 9: 400.0}},
        "draft": {0: {PROMPT: 2.0 * PROMPT}, 2: {1: 20.0}},
    }
    run = {"concurrency": 2, "drafts_per_step": 2.0, "tokens_per_step": 2.5, "prompts_per_token": 0}
    # A step with three tokens of each row brings 2.5 for 1.6 times the time.
    assert expected(times, run, draft_model=False) == pytest.approx(2.5 / 1.6)
    assert expected(times, run, draft_model=True) == pytest.approx(2.5 / 2.0)
    # Three tokens of prompts for each of an answer take 30, or 36.
    run["prompts_per_token"] = 3
    assert expected(times, run, draft_model=False) == pytest.approx((50 + 30) / (32 + 30))
    assert expected(times, run, draft_model=True) == pytest.approx((50 + 30) / (40 + 36))


def test_noise_is_the_range_of_runs_without_proposers() -> None:
    without = Case("json", ())
    assert without.name == "control"
    control = [
        row(without, clients, [spent(1.0 + clients / 1000, 1.0)] * 6) for clients in CONCURRENCY
    ]
    slow = row(COPY, 1, [spent(0.9, 1.0)] * 6)
    unsure = row(COPY, 4, [spent(0.9, 1.0)] * 5 + [spent(1.2, 1.0)])
    noise = noise_of([slow, unsure], control)
    assert noise["control"] == pytest.approx([1.001, 1.064])
    assert [(run["proposer"], run["concurrency"]) for run in noise["below"]] == [("ngram", 1)]


def test_the_quick_form_leaves_out_nothing_that_is_promised() -> None:
    whole, quick = points(quick=False), points(quick=True)
    assert set(quick) < set(whole)
    promised = {(case, clients) for case, clients in whole if case.workload != "json"}
    assert promised < set(quick)
    assert {case for case, _ in quick} == {case for case, _ in whole}
