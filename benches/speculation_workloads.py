"""Workloads of the speculation bench: streams of questions, the same for the same key."""

import functools
import itertools
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyengine import SamplingParams
from pyengine.grammar import Grammar, json_schema
from tools.demo_model.data import documents
from tools.demo_model.skills.fields import extraction
from tools.demo_model.skills.prose import stdlib_words

SCHEMAS = 40  # questions whose schemas are asked for
LONG = 120  # characters of an answer


@dataclass(frozen=True)
class Question:
    """The questions of a client."""

    prompt: str
    params: SamplingParams
    grammar: Grammar | None = None


def asked(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def copies(key: str) -> Iterator[Question]:
    """Phrases as long as the demo model can say again."""
    rng, words = random.Random(f"copy {key}"), stdlib_words()
    while True:
        phrase = " ".join(rng.choice(words) for _ in range(10))
        yield Question(
            asked(f"Repeat exactly: {phrase}"), SamplingParams(temperature=0, max_tokens=80)
        )


def schema_of(answer: str) -> dict[str, Any]:
    """The schema of the keys of a JSON object, in their order."""
    kinds = {int: "integer", float: "number", str: "string", bool: "boolean"}
    wanted = json.loads(answer)
    return {
        "type": "object",
        "properties": {key: {"type": kinds[type(value)]} for key, value in wanted.items()},
        "required": list(wanted),
        "additionalProperties": False,
    }


@functools.cache
def schemas() -> dict[tuple[str, ...], Grammar]:
    """Grammars by the keys of their schemas: few, so that all are compiled."""
    rng = random.Random("json")
    answers = [extraction(rng).expect for _ in range(SCHEMAS)]
    return {tuple(json.loads(answer)): json_schema(schema_of(answer)) for answer in answers}


def extractions(key: str) -> Iterator[Question]:
    """Fields of a text, under a schema of just these."""
    params = SamplingParams(temperature=0, max_tokens=120)
    rng = random.Random(f"json {key}")
    while True:
        exchange = extraction(rng)
        grammar = schemas().get(tuple(json.loads(exchange.expect)))
        if grammar is not None:
            yield Question(asked(exchange.turns[-2].text), params, grammar)


def chats(key: str) -> Iterator[Question]:
    """Questions with answers of some length, as chats have, sampled with some variety."""
    first = zlib.crc32(key.encode())
    for index in itertools.count(first):
        for seed, document in enumerate(documents(11, index, 200)):
            last = max(at for at, (_, said) in enumerate(document) if said)
            prompt = "".join(text for text, _ in document[:last])
            if 0 < len(prompt) < 800 and len(document[last][0]) > LONG:
                yield Question(prompt, SamplingParams(seed=seed, temperature=0.7, max_tokens=150))


WORKLOADS = {"copy": copies, "json": extractions, "chat": chats}
