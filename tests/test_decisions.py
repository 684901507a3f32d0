"""Decisions: probabilities from the logits, the same bits in any company, over OpenAI's client."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import openai
import pytest
import pytest_asyncio

from pyengine import AsyncEngine, SamplingParams
from pyengine.decisions.option_trie import OptionTrie
from pyengine.decisions.plan import made_plan
from pyengine.decisions.questions import (
    Choice,
    ChoiceAnswer,
    Option,
    Predicate,
    PredicateAnswer,
    Question,
    Score,
)
from pyengine.errors import InvalidRequestError
from pyengine.http.serving.server import HttpServer
from tests.answers import assert_nothing_is_left

pytestmark = pytest.mark.asyncio(loop_scope="module")

INPUT = "I was charged twice for my order, and nobody answers the phone. " * 4
TEAMS = [Option("billing", "Payments."), Option("billing of others"), Option("the shop")]
QUESTIONS: list[Question] = [
    Predicate(instructions="The client is angry.", name="angry"),
    Choice(instructions="Who should answer?", choices=TEAMS, name="team"),
    Score(
        instructions="How urgent is it?", levels=[Option("low"), Option("middling"), Option("high")]
    ),
    Choice(instructions="Is it so?", choices=[Option(True), Option("true"), Option(False)]),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(mode="server") as engine:
        yield engine
        await assert_nothing_is_left(engine)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(engine: AsyncEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    server = HttpServer(engine, port=0)
    await server.start()
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        yield client
    await server.stop(0)


def probabilities(answer: Any) -> list[float]:
    if isinstance(answer, PredicateAnswer):
        return [answer.probability]
    return [probability for _, probability in answer.probabilities]


async def test_probabilities_are_those_of_an_answer_that_is_one_of_the_options(
    engine: AsyncEngine,
) -> None:
    """Counted anew, token by token, from the log-probabilities of prompts that have the options."""
    (read, _) = engine._prompts.read([{"role": "user", "content": INPUT}])
    plan = await made_plan(engine.handler, engine.tokenizer, read, QUESTIONS, 1)
    made = (await engine.decide(INPUT, QUESTIONS)).answers
    for asked, answer in zip(plan.asked, made, strict=True):
        ways = asked.trie._ways

        async def logprob(way: Sequence[int], at: int, prompt: list[int] = asked.prompt) -> float:
            whole = [*prompt, *way[: at + 1]]
            entry = (await engine.prompt_logprobs(whole, first=len(whole) - 2))[-1]
            assert entry is not None
            return entry.logprob

        wanted = []
        for way in ways:
            share = 1.0
            for at, token in enumerate(way):
                others = {other[at] for other in ways if other[:at] == way[:at]}
                if len(others) > 1:
                    of = {each: await logprob((*way[:at], each), at) for each in others}
                    share *= math.exp(of[token]) / sum(map(math.exp, of.values()))
            wanted.append(share)
        assert probabilities(answer) == pytest.approx(
            wanted[: len(probabilities(answer))], rel=1e-4
        )
        if not isinstance(answer, PredicateAnswer):
            assert math.fsum(probabilities(answer)) == pytest.approx(1, abs=1e-12)


async def test_answers_are_the_same_bits_alone_in_company_cold_and_cached(
    engine: AsyncEngine,
) -> None:
    cold = []
    for question in QUESTIONS:
        await engine.reset_prefix_cache()
        cold += (await engine.decide(INPUT, [question])).answers
    await engine.reset_prefix_cache()
    assert (await engine.decide(INPUT, QUESTIONS)).answers == cold
    assert (await engine.decide(INPUT, QUESTIONS)).answers == cold
    others = [engine.generate("Once upon a time", SamplingParams(max_tokens=60)) for _ in range(8)]
    many = [*QUESTIONS, *(Predicate(instructions=f"It is {n} o'clock.") for n in range(40))]
    in_company = (await engine.decide(INPUT, many)).answers
    assert in_company[: len(QUESTIONS)] == cold
    await asyncio.gather(*others)


async def test_orders_are_averaged(engine: AsyncEngine) -> None:
    rotated = [TEAMS[at:] + TEAMS[:at] for at in range(3)]
    by_value: dict[Any, list[float]] = {}
    for teams in rotated:
        asked = Choice(instructions="Who should answer?", choices=teams)
        (answer,) = (await engine.decide(INPUT, [asked])).answers
        assert isinstance(answer, ChoiceAnswer)
        for value, probability in answer.probabilities:
            by_value.setdefault(value, []).append(probability)
    (mean,) = (await engine.decide(INPUT, QUESTIONS[1:2], orders=3)).answers
    assert isinstance(mean, ChoiceAnswer)
    wanted = {value: sum(found) / 3 for value, found in by_value.items()}
    assert dict(mean.probabilities) == pytest.approx(wanted)
    assert mean.confidence == max(dict(mean.probabilities).values())
    # There are no more orders than options.
    assert (await engine.decide(INPUT, QUESTIONS[1:2], orders=9)).answers == [mean]


async def test_input_is_computed_once_for_400_questions(engine: AsyncEngine) -> None:
    questions = [Predicate(instructions=f"It has {n} words.") for n in range(400)]
    await engine.reset_prefix_cache()
    made = await engine.decide(INPUT, questions)
    assert len(made.answers) == 400
    inputs = len(await engine.encode(INPUT))
    new = sum(usage.prompt_tokens - usage.cached_tokens for usage in made.usages)
    # Each question has its own words, and a part of a block of the input.
    assert new < 400 * (made.usages[0].prompt_tokens - inputs + 16) + inputs


async def test_openai_client_asks_as_it_asks_openai(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    model = engine.model_name
    given: Any = [
        {"role": "developer", "content": "You work for a shop."},
        {"role": "user", "content": [{"type": "input_json", "data": {"order": [1, 2]}}]},
        {"type": "function_call", "call_id": "a", "name": "find", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "paid twice"},
    ]
    made = await client.decisions.create(
        model=model,
        input=given,
        questions=[
            {"type": "predicate", "instructions": "It was paid twice.", "name": "twice"},
            {
                "type": "choice",
                "instructions": [{"type": "input_text", "text": "Who should answer?"}],
                "choices": [{"value": "billing", "description": "Payments."}, {"value": True}],
            },
            {
                "type": "score",
                "instructions": "How urgent is it?",
                "levels": [{"label": "low"}, {"label": "high"}],
            },
        ],
        safety_identifier="someone",
    )
    twice, team, urgency = made.answers
    assert (twice.type, team.type, urgency.type) == ("predicate", "choice", "score")
    assert twice.type == "predicate"
    assert twice.name == "twice"
    assert 0 < twice.probability < 1
    assert team.type == "choice"
    assert {each.value for each in team.probabilities} == {"billing", True}
    assert urgency.type == "score"
    assert urgency.score == pytest.approx(urgency.probabilities[1].probability)
    assert [(each.value, each.label) for each in urgency.probabilities] == [(0, "low"), (1, "high")]
    assert made.usage.total_tokens == made.usage.input_tokens > made.usage.output_tokens == 0


@pytest.mark.parametrize(
    ("questions", "param"),
    [
        ([], "questions"),
        ([{"type": "predicate", "instructions": " "}], "questions[0].instructions"),
        (
            [{"type": "choice", "instructions": "x", "choices": [{"value": "a"}, {"value": "a"}]}],
            "questions[0].choices",
        ),
        (
            [{"type": "score", "instructions": "x", "levels": [{"label": "a"}]}],
            "questions[0].levels",
        ),
        (
            [{"type": "predicate", "instructions": [{"type": "input_image", "image_url": "x"}]}],
            "questions[0].instructions[0]",
        ),
    ],
)
async def test_questions_out_of_their_bounds_are_refused(
    client: openai.AsyncOpenAI, questions: Any, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.decisions.create(model="pyengine-demo", input="x", questions=questions)
    assert refused.value.param == param


async def test_models_without_a_template_decide_nothing(engine: AsyncEngine) -> None:
    with pytest.raises(InvalidRequestError, match="'orders' must be at least 1"):
        await engine.decide(INPUT, QUESTIONS, orders=0)


async def test_way_of_an_option_within_another_goes_on_with_the_end() -> None:
    trie = OptionTrie([[1, 2], [1, 2, 3], [4]], end=0)
    assert [(place.path, place.children) for place in trie.places] == [
        ((), (1, 4)),
        ((1, 2), (0, 3)),
    ]
    half = math.log(0.5)
    assert trie.probabilities([[half, half], [math.log(0.1), math.log(0.3)]]) == pytest.approx(
        [0.125, 0.375, 0.5]
    )
    # Log-probabilities far from zero do no harm.
    assert trie.probabilities([[-2000.0, -2000.0], [-900.0, -1900.0]]) == pytest.approx(
        [0.5, 0, 0.5]
    )
