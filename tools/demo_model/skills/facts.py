"""Common facts, asked in many wordings; what is held out is the wording."""

import random
from dataclasses import dataclass

from tools.demo_model.dialogue import Exchange, Turn
from tools.demo_model.skills import tables
from tools.demo_model.skills.tables import number_words
from tools.demo_model.wording import dress, say

__all__ = ["capital", "fact"]

_WHAT = "[What is|What's|Tell me|Do you know|Can you tell me|Give me|Name|Please tell me]"
_WHICH = "[Which|What]"


@dataclass(frozen=True)
class _Facts:
    """A table with ways to ask for its right side given its left side."""

    table: dict[str, str]
    question: str
    answer: str


def _after(names: list[str], step: int) -> dict[str, str]:
    """For each name the one ``step`` places on, going round."""
    return {name: names[(i + step) % len(names)] for i, name in enumerate(names)}


_COUNTRIES = (
    _Facts(
        tables.CAPITALS,
        f"[{_WHAT} the capital [city |]of {{k}}?|{_WHICH} city is the capital of {{k}}?|"
        "The capital of {k} is?|What is {k}'s capital[ city|]?|Capital of {k}?|"
        "Which city is {k}'s capital?|{k}: what is the capital?]",
        "The capital of {k} is {v}.",
    ),
    _Facts(
        {city: country for country, city in tables.CAPITALS.items()},
        "[{k} is the capital of [which|what] country?|"
        "[Which|What] country has {k} as its capital?|Of which country is {k} the capital?|"
        "[Which|What] country is {k} the capital of?|What is {k} the capital of?]",
        "{k} is the capital of {v}.",
    ),
    _Facts(
        tables.CONTINENT_OF,
        "[[Which|What] continent is {k} [in|on]?|[On|In] [which|what] continent is {k}?|"
        "[On|In] which continent does {k} lie?|Where in the world is {k}?|Where is {k}?]",
        "{k} is in {v}.",
    ),
)
_ORDINALS = "first second third fourth fifth sixth seventh eighth".split()
_OTHERS = (
    _Facts(
        tables.COLOUR_OF,
        "[[What|Which] colo[u|]r [is|has] {k}?|"
        "[What is|Tell me|Do you know] the colo[u|]r of {k}?|{k} has which colo[u|]r?]",
        "{k} is {v}.",
    ),
    _Facts(
        tables.YOUNG,
        "[What [is|do you call] [a baby|a young] {k}[ called|]?|What is the young of a {k} called?|"
        f"{_WHAT} the [name of|word for] a [baby|young] {{k}}?|"
        "How is a [baby|young] {k} called?]",
        "A young {k} is called a {v}.",
    ),
    _Facts(
        tables.SOUNDS,
        "[What [sound|noise] does a {k} make?|Which sound does a {k} make?|"
        f"{_WHAT} the [sound|noise] [of|that is made by] a {{k}}?|What does a {{k}} say?]",
        "A {k} {v}.",
    ),
    _Facts(
        tables.OPPOSITES,
        f'[{_WHAT} the opposite of ["{{k}}"|{{k}}]?|{_WHICH} word is the opposite of {{k}}?|'
        'Opposite of {k}?|What is the contrary of {k}?|The opposite of "{k}" is?]',
        "The opposite of {k} is {v}.",
    ),
    _Facts(
        tables.UNITS,
        "[How many {k}[| are there]?|[Tell me|Do you know|Can you tell me] how many {k} there are?|"
        "What is the number of {k}?]",
        "There are {v} {k}.",
    ),
    _Facts(
        tables.LEGS,
        "[How many legs does a {k} have?|How many legs has a {k}?|What number of legs has a {k}?|"
        "[Tell me|Do you know] how many legs a {k} has?]",
        "A {k} has {v} legs.",
    ),
    _Facts(
        tables.SIDES,
        "[How many sides does a {k} have?|How many [sides|corners] has a {k}?|"
        "[Tell me|Do you know] how many sides a {k} has?|A {k} has how many sides?]",
        "A {k} has {v} sides.",
    ),
    _Facts(
        tables.CHEMISTRY,
        f"[{_WHAT} the [chemical |]symbol [for|of] {{k}}?|What is {{k}}'s chemical symbol?|"
        "Which chemical symbol has {k}?|Chemical symbol of {k}?]",
        "The chemical symbol of {k} is {v}.",
    ),
    _Facts(
        tables.PAST,
        f'[{_WHAT} the past [tense |form |]of ["{{k}}"|{{k}}|to {{k}}]?|'
        'How do you say "{k}" in the past?|Past tense of {k}?]',
        "The past tense of {k} is {v}.",
    ),
    _Facts(
        tables.HOME_OF,
        "[Where does a {k} live?|What does a {k} live in?|In what does a {k} live?|"
        "[What is|Tell me] the home of a {k}?]",
        "A {k} lives in {v}.",
    ),
    _Facts(
        tables.MONTH_DAYS,
        "[How many days [are in|has|does] {k}[| have]?|How long is {k}?|"
        f"{_WHAT} the number of days in {{k}}?]",
        "{k} has {v} days.",
    ),
    *(
        _Facts(
            _after(names, step),
            f"[{_WHICH} {kind} [comes|is|follows] [right |]{word} {{k}}?|"
            f"{_WHAT} the {kind} [right |]{word} {{k}}?|{word} {{k}} comes which {kind}?]",
            f"The {kind} {word} {{k}} is {{v}}.",
        )
        for kind, names in (("day", tables.DAYS), ("month", list(tables.MONTH_DAYS)))
        for word, step in (("after", 1), ("before", -1))
    ),
    *(
        _Facts(
            dict(zip(_ORDINALS, names, strict=False)),
            f"[{_WHICH} is the {{k}} {kind}?|{_WHAT} the {{k}} {kind}?|"
            f"{_WHICH} {kind} {'comes' if kind != where else 'is'} {{k}}?]",
            f"The {{k}} {kind} {where} is {{v}}.",
        )
        for kind, where, names in (
            ("planet", "from the sun", tables.PLANETS),
            ("day", "of the week", tables.DAYS),
            ("month", "of the year", list(tables.MONTH_DAYS)),
        )
    ),
    _Facts(
        {str(n): number_words(n) for n in range(101)},
        "[Write {k} in words[.|?|]|How do you write {k} in words?|"
        "Write the number {k} as a word[.|]|What is {k} in words?|{k} in words?]",
        "{k} in words is {v}.",
    ),
    _Facts(
        {number_words(n): str(n) for n in range(101)},
        "[Write {k} [in digits|as a number][.|?|]|How do you write {k} in digits?|"
        "What is {k} in [digits|numbers]?|Which number is {k}?]",
        "{k} in digits is {v}.",
    ),
)


def _ask(rng: random.Random, skill: str, kind: _Facts) -> Exchange:
    """One question of a table, as an exchange."""
    left = rng.choice(list(kind.table))
    right = kind.table[left]
    question = say(rng, kind.question, k=left)
    question = dress(rng, question[0].upper() + question[1:])
    answer = say(rng, kind.answer, k=left, v=right)
    answer = answer[0].upper() + answer[1:]
    turns = (Turn("user", question), Turn("assistant", answer))
    return Exchange(skill, question, turns, "contains", right)


def capital(rng: random.Random) -> Exchange:
    """Capitals, their countries, and continents."""
    return _ask(rng, "countries", rng.choice((_COUNTRIES[0], *_COUNTRIES)))


def fact(rng: random.Random) -> Exchange:
    """Any other table."""
    return _ask(rng, "facts", rng.choice(_OTHERS))
