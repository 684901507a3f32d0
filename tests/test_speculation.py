"""Speculation changes no token: whoever drafts, and however much, every answer is the same."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.config import Proposer
from pyengine.demo.data import documents
from pyengine.errors import ConfigError, ModelLoadError, RequestAbortedError
from pyengine.grammar import Grammar, choice, json_schema, regex

PROMPTS = 500
TOKENS = 12
HOST: tuple[Proposer, ...] = ("forced", "prediction", "ngram", "suffix")
ALL: tuple[Proposer, ...] = (*HOST, "draft_model")

GRAMMARS: tuple[Grammar, ...] = (
    json_schema(
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "likes": {"enum": ["tea", "trains"]}},
            "required": ["name", "likes"],
        }
    ),
    choice(["certainly", "certainly not", "perhaps"]),
    regex(r"The answer is [0-9]{1,3}\."),
)


@dataclass(frozen=True)
class Question:
    """A prompt, how it is answered, and what the answer might be."""

    prompt: str
    params: SamplingParams
    grammar: Grammar | None = None
    prediction: str | None = None


@dataclass(frozen=True)
class Answer:
    """What may not depend on speculation."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: str | None
    stop_string: str | None


def question(index: int, prompt: str, known: str, tokens: int) -> Question:
    """The question number ``index``; of ten, four are plain and greedy."""
    greedy = SamplingParams(temperature=0, max_tokens=tokens)
    match index % 10:
        case 4 | 5:
            varied = SamplingParams(seed=index, temperature=0.9, top_p=0.95, max_tokens=tokens)
            return Question(prompt, varied)
        case 6:
            wild = SamplingParams(seed=index, temperature=1.4, top_k=20, min_p=0.02, max_tokens=9)
            return Question(prompt, wild)
        case 7:
            return Question(prompt, greedy, grammar=GRAMMARS[index // 10 % len(GRAMMARS)])
        case 8:
            return Question(prompt, greedy, prediction=known)
        case 9:
            ended = SamplingParams(
                temperature=0, max_tokens=tokens, stop=("he", ". "), ignore_eos=True
            )
            return Question(prompt, ended)
        case _:
            return Question(prompt, greedy)


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    found = []
    for index, document in enumerate(documents(3, 0, PROMPTS)):
        last = max(at for at, (_, said) in enumerate(document) if said)
        prompt = "".join(text for text, _ in document[:last])
        found.append(question(index, prompt or "Once", document[last][0], TOKENS))
    return found


async def ask(
    questions: Sequence[Question], **config: Any
) -> tuple[list[Answer], dict[str, int | float]]:
    """All questions at once, and the engine's report afterwards; nothing is left behind."""
    settings = {"max_sequences": 32, "max_draft": 5} | config
    async with AsyncEngine(**settings) as engine:
        answers = await asyncio.gather(
            *(
                engine.generate(q.prompt, q.params, grammar=q.grammar, prediction=q.prediction)
                for q in questions
            )
        )
        await engine.drained()
        while (report := await engine.report())["running"] + report["in_flight"]:
            pass  # each report is an answer from the scheduler, a step later
        assert report["waiting"] == report["held"] == 0
        assert report["free"] + report["cached"] == report["num_blocks"]
    return [
        Answer(tuple(a.token_ids), a.text, a.finish_reason, a.stop_string) for a in answers
    ], report


def assert_same(got: list[Answer], wanted: list[Answer]) -> None:
    differing = [index for index, answer in enumerate(got) if answer != wanted[index]]
    assert not differing, [(index, got[index], wanted[index]) for index in differing[:3]]


@pytest.fixture(scope="module")
def without(questions: list[Question]) -> list[Answer]:
    """The answers with no speculation."""
    answers, report = asyncio.run(ask(questions, speculation=()))
    assert "drafted_ngram" not in report
    return answers


COMBINATIONS: list[tuple[tuple[Proposer, ...], bool]] = [
    (("ngram",), False),
    (("suffix",), False),
    (("prediction",), False),
    (("forced",), False),
    (("draft_model",), False),
    (HOST, False),
    (ALL, False),
    (HOST, True),
    (ALL, True),
]


@pytest.mark.parametrize(("proposers", "adaptive"), COMBINATIONS, ids=str)
async def test_whoever_drafts_the_answers_are_the_same(
    questions: list[Question],
    without: list[Answer],
    proposers: tuple[Proposer, ...],
    adaptive: bool,
) -> None:
    answers, report = await ask(
        questions,
        speculation=proposers,
        speculation_adaptive=adaptive,
        draft_model="demo" if "draft_model" in proposers else None,
    )
    assert_same(answers, without)
    if not adaptive:
        for source in proposers:
            assert report[f"drafted_{source}"] > 0, source


TIGHT: dict[str, dict[str, Any]] = {
    "chunked prefill": {"prefill_chunk": 5},
    "small steps": {"max_sequences": 6, "max_tokens_per_step": 11},
    "no prefix cache": {"prefix_cache": False},
    "one at a time": {"max_sequences": 1, "max_draft": 16},
}


@pytest.mark.parametrize("config", TIGHT.values(), ids=list(TIGHT))
async def test_whatever_steps_look_like_the_answers_are_the_same(
    questions: list[Question], config: dict[str, Any]
) -> None:
    some = [q for q in questions if len(q.prompt) < 600][:60]
    wanted, _ = await ask(some, speculation=(), **config)
    given: dict[str, Any] = {"speculation": ALL, "draft_model": "demo"} | config
    answers, report = await ask(some, speculation_adaptive=False, **given)
    assert_same(answers, wanted)
    assert sum(report[f"drafted_{source}"] for source in ALL) > 20


def long(count: int) -> list[Question]:
    """Questions whose answers grow far beyond their prompts, every other one sampled."""
    return [
        Question(
            f"<|im_start|>user\nCount from {index} to 90<|im_end|>\n<|im_start|>assistant\n",
            SamplingParams(temperature=index % 2, seed=index, max_tokens=120, ignore_eos=True),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("adaptive", [True, False])
async def test_preemption_in_a_tiny_cache_changes_nothing(adaptive: bool) -> None:
    config: dict[str, Any] = {"num_blocks": 40, "block_size": 8}
    wanted, report = await ask(long(12), speculation=(), **config)
    assert report["preemptions"] > 0
    given = config | {"draft_model": "demo", "speculation": ALL}
    answers, report = await ask(long(12), speculation_adaptive=adaptive, **given)
    assert report["preemptions"] > 0
    assert_same(answers, wanted)


async def test_who_aborts_takes_nobody_along() -> None:
    asked = long(8)
    wanted, _ = await ask(asked, speculation=())
    async with AsyncEngine(
        speculation=ALL, draft_model="demo", speculation_adaptive=False, max_sequences=8
    ) as engine:
        generations = [engine.generate(q.prompt, q.params) for q in asked]
        for generation in generations[::2]:
            await anext(generation)
            generation.abort()
            with pytest.raises(RequestAbortedError):
                await generation
        answers = [await generation for generation in generations[1::2]]
        assert [tuple(a.token_ids) for a in answers] == [a.tokens for a in wanted[1::2]]
        await engine.drained()
        while (report := await engine.report())["running"] + report["in_flight"]:
            pass
        assert report["waiting"] == report["held"] == 0


async def test_what_cannot_be_is_refused_by_name() -> None:
    for config, said in (
        ({"speculation": ("draft_model",)}, "does not say which"),
        ({"speculation": ("ngram",), "draft_model": "demo"}, "does not name"),
        ({"speculation": ("oracle",)}, "oracle"),
        ({"device": "simulated", "draft_model": "demo"}, "simulated"),
    ):
        with pytest.raises(ConfigError, match=said):
            AsyncEngine(**config)  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match="draft model: there is no model folder"):
        async with AsyncEngine(draft_model="./nowhere"):
            pass
