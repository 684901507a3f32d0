"""The training data: a seeded, endless stream of dialogues and a little prose."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from tools.demo_model.dialogue import Dialogue, Exchange, held_out, segments
from tools.demo_model.skills import (
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
from tools.demo_model.skills.prose import paragraphs
from tools.demo_model.template import END_OF_TEXT

__all__ = ["PROSE_SHARE", "Segments", "documents", "exam"]

Maker = Callable[[random.Random], Exchange]
Segments = list[tuple[str, bool]]
"""A document in pieces of text, each with whether it is trained on."""

# Each skill with its share of the dialogues early and late in training.  Late,
# what is still hard weighs more: sums, copying into JSON, spelling.
_SHARES: tuple[tuple[Maker, float, float], ...] = (
    (chat.small_talk, 5, 3),
    (chat.unknown, 4.5, 2),
    (product.product, 8, 5),
    (sums.plus, 10, 20),
    (sums.minus, 7, 16),
    (sums.times, 4, 9),
    (sums.division, 2, 5),
    (sums.comparison, 4, 6),
    (sums.count_story, 3, 3),
    (facts.capital, 11, 10),
    (facts.fact, 13, 11),
    (copying.repeat, 6.5, 5),
    (copying.spell, 5, 9),
    (copying.recall, 2, 1),
    (fields.extraction, 11, 20),
    (tools.tool_use, 8, 9),
    (tools.no_tool_fits, 2, 1.5),
    (lists.counting, 2.5, 2),
    (lists.listing, 2, 0.5),
    (lists.story, 1, 0.5),
    (instructions.persona, 1.5, 1),
    (instructions.obey, 2, 2),
)
_MAKERS = [maker for maker, _, _ in _SHARES]
_EARLY = [early for _, early, _ in _SHARES]
_LATE = [late for _, _, late in _SHARES]
PROSE_SHARE = 0.03
_BESIDE_TOOLS: tuple[Maker, ...] = (chat.small_talk, product.product, facts.capital)


def _unseen(rng: random.Random, maker: Maker, wanted: bool) -> Exchange:
    """An exchange of a maker that is held out, or is not, as ``wanted``."""
    while True:
        exchange = maker(rng)
        if held_out(exchange.key) == wanted:
            return exchange


def _dialogue(rng: random.Random, late: bool) -> Dialogue:
    """One exchange, or several in a row, that share a system prompt and tools."""
    weights = _LATE if late else _EARLY
    first = _unseen(rng, rng.choices(_MAKERS, weights)[0], wanted=False)
    exchanges = [first]
    roll = rng.random()
    if first.system is None and roll < 0.25:
        count = rng.randint(8, 14) if roll < 0.008 else rng.choice((1, 1, 2, 3))
        for _ in range(count):
            if first.tools:
                maker = rng.choice(_BESIDE_TOOLS)
            else:
                maker = rng.choices(_MAKERS, weights)[0]
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


def documents(seed: int, index: int, count: int, late: bool = False) -> Iterator[Segments]:
    """Yield ``count`` documents; the same arguments give the same ones."""
    rng = random.Random(f"pyengine demo {seed} {index}")
    for _ in range(count):
        if rng.random() < PROSE_SHARE:
            yield [(rng.choice(paragraphs()) + END_OF_TEXT, True)]
        else:
            yield list(segments(_dialogue(rng, late)))


def exam(seed: int, count: int) -> dict[str, list[Exchange]]:
    """At most ``count`` distinct held-out exchanges for every skill, by skill.

    Half of them come with a plain system prompt where the exchange has none.
    """
    rng = random.Random(f"pyengine demo exam {seed}")
    found: dict[str, dict[str, Exchange]] = {}
    for maker in _MAKERS:
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
