"""What tests of speculation share: questions of every kind, and what may not depend on it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyengine import AsyncEngine, SamplingParams
from pyengine.grammar import Grammar, choice, json_schema, regex
from pyengine.logprobs import TokenLogprob
from pyengine.settings.choices import Proposer
from tests.answers import assert_nothing_is_left
from tools.demo_model.data import documents

PROMPTS = 500
SAMPLED = 150
TOKENS = 12
WAVE = 32
HOST: tuple[Proposer, ...] = ("forced", "prediction", "ngram")
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
    logprobs: tuple[TokenLogprob, ...] | None


def greedy(index: int, prompt: str, known: str) -> Question:
    """A question that is answered greedily; of five, two are plain."""
    params = SamplingParams(temperature=0, max_tokens=TOKENS)
    match index % 5:
        case 1:
            return Question(prompt, params, grammar=GRAMMARS[index // 5 % len(GRAMMARS)])
        case 2:
            return Question(prompt, params, prediction=known)
        case 3:
            stop = ("he", ". ")
            params = SamplingParams(temperature=0, max_tokens=TOKENS, stop=stop, ignore_eos=True)
            return Question(prompt, params)
        case 4:
            # A floating-point number of each token: equal to the last bit.
            params = SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=2)
            return Question(prompt, params)
        case _:
            return Question(prompt, params)


def sampled(index: int, prompt: str) -> Question:
    """A question that is answered by chance, with a seed."""
    kinds: tuple[dict[str, Any], ...] = (
        {"temperature": 0.9, "top_p": 0.95},
        {"temperature": 1.4, "top_k": 20, "min_p": 0.02},
        {"temperature": 0.8, "presence_penalty": 0.5, "repetition_penalty": 1.2, "logprobs": 0},
    )
    params = SamplingParams(seed=index, max_tokens=TOKENS, **kinds[index % len(kinds)])
    return Question(prompt, params)


def questions() -> list[Question]:
    """:data:`PROMPTS` greedy ones, and :data:`SAMPLED` others."""
    found = []
    for index, document in enumerate(documents(3, 0, PROMPTS + SAMPLED)):
        last = max(at for at, (_, said) in enumerate(document) if said)
        prompt = "".join(text for text, _ in document[:last]) or "Once"
        known = document[last][0]
        found.append(greedy(index, prompt, known) if index < PROMPTS else sampled(index, prompt))
    return found


async def ask(asked: Sequence[Question], **config: Any) -> tuple[list[Answer], dict[str, int]]:
    """All questions in waves, and the engine's report afterwards; nothing is left behind."""
    settings = {"max_sequences": WAVE, "max_draft": 5} | config
    if "draft_model" in settings["speculation"]:
        settings = {"draft_model": "demo"} | settings
    answers = []
    async with AsyncEngine(**settings) as engine:
        for first in range(0, len(asked), WAVE):
            answers += await asyncio.gather(
                *(
                    engine.generate(q.prompt, q.params, grammar=q.grammar, prediction=q.prediction)
                    for q in asked[first : first + WAVE]
                )
            )
        await assert_nothing_is_left(engine)
        report = await engine.report()
    return [
        Answer(tuple(a.token_ids), a.text, a.finish_reason, a.stop_string, a.logprobs)
        for a in answers
    ], report


def assert_same(got: list[Answer], wanted: list[Answer]) -> None:
    """Each answer is the one that it must be."""
    differing = [index for index, answer in enumerate(got) if answer != wanted[index]]
    assert not differing, [(index, got[index], wanted[index]) for index in differing[:3]]
