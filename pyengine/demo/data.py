"""The training data: a seeded, endless stream of dialogues and a little prose."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from pyengine.demo.dialogue import Dialogue, Exchange, held_out, segments
from pyengine.demo.skills import (
    chat,
    copying,
    facts,
    fields,
    instructions,
    lists,
    product,
    sums,
    tools,
)
from pyengine.demo.skills.prose import paragraphs
from pyengine.demo.template import END_OF_TEXT

__all__ = ["PROSE_SHARE", "Segments", "documents", "exam"]

Maker = Callable[[random.Random], Exchange]
Segments = list[tuple[str, bool]]
"""A document in pieces of text, each with whether it is trained on."""

# Each skill with its share of the dialogues, roughly by how hard it is.
_SHARES: tuple[tuple[Maker, float], ...] = (
    (chat.small_talk, 5),
    (chat.unknown, 6),
    (product.product, 9),
    (sums.plus, 11),
    (sums.minus, 9),
    (sums.times, 4),
    (sums.division, 2),
    (sums.comparison, 4),
    (sums.count_story, 3),
    (facts.capital, 9),
    (facts.fact, 10),
    (copying.repeat, 8),
    (copying.spell, 6),
    (copying.recall, 2),
    (fields.extraction, 14),
    (tools.tool_use, 9.5),
    (tools.no_tool_fits, 2),
    (lists.counting, 3),
    (lists.listing, 2),
    (lists.story, 1.5),
    (instructions.persona, 2),
    (instructions.obey, 3),
)
_MAKERS = [maker for maker, _ in _SHARES]
_WEIGHTS = [weight for _, weight in _SHARES]
PROSE_SHARE = 0.03
_BESIDE_TOOLS: tuple[Maker, ...] = (chat.small_talk, product.product, facts.capital)


def _unseen(rng: random.Random, maker: Maker, wanted: bool) -> Exchange:
    """An exchange of a maker that is held out, or is not, as ``wanted``."""
    while True:
        exchange = maker(rng)
        if held_out(exchange.key) == wanted:
            return exchange


def _dialogue(rng: random.Random) -> Dialogue:
    """One exchange, or several in a row, that share a system prompt and tools."""
    first = _unseen(rng, rng.choices(_MAKERS, _WEIGHTS)[0], wanted=False)
    exchanges = [first]
    roll = rng.random()
    if first.system is None and roll < 0.25:
        count = rng.randint(8, 14) if roll < 0.008 else rng.choice((1, 1, 2, 3))
        for _ in range(count):
            if first.tools:
                maker = rng.choice(_BESIDE_TOOLS)
            else:
                maker = rng.choices(_MAKERS, _WEIGHTS)[0]
            following = _unseen(rng, maker, wanted=False)
            if following.system is None and not following.tools:
                exchanges.append(following)
        if first.tools:
            rng.shuffle(exchanges)
    system = first.system
    if system is None and rng.random() < 0.4:
        system = instructions.plain_system(rng)
    turns = tuple(turn for exchange in exchanges for turn in exchange.turns)
    return Dialogue(turns, system, first.tools)


def documents(seed: int, index: int, count: int) -> Iterator[Segments]:
    """Yield ``count`` documents; the same seed and index give the same ones."""
    rng = random.Random(f"pyengine demo {seed} {index}")
    for _ in range(count):
        if rng.random() < PROSE_SHARE:
            yield [(rng.choice(paragraphs()) + END_OF_TEXT, True)]
        else:
            yield list(segments(_dialogue(rng)))


def exam(seed: int, count: int) -> dict[str, list[Exchange]]:
    """At most ``count`` distinct held-out exchanges for every skill, by skill.

    Half of them come with a plain system prompt where the exchange has none.
    """
    rng = random.Random(f"pyengine demo exam {seed}")
    found: dict[str, dict[str, Exchange]] = {}
    for maker, _ in _SHARES:
        for _ in range(20 * count):
            exchange = _unseen(rng, maker, wanted=True)
            group = found.setdefault(exchange.skill, {})
            if exchange.system is None and rng.random() < 0.5:
                exchange = replace(exchange, system=instructions.plain_system(rng))
            group.setdefault(exchange.key, exchange)
    questions: dict[str, list[Exchange]] = {}
    for skill, group in sorted(found.items()):
        ordered = [group[key] for key in sorted(group)]
        questions[skill] = rng.sample(ordered, min(count, len(ordered)))
    return questions
