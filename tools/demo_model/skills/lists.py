"""Longer answers of many lines, which show streaming."""

import random

from tools.demo_model.dialogue import Exchange, Turn
from tools.demo_model.skills import tables
from tools.demo_model.wording import dress, say
from tools.demo_model.words import ANIMALS, COLOURS, MONTHS, NAMES, name_of

__all__ = ["counting", "listing", "story"]

_ASK = "[List|Name|Tell me|Give me|Write|Write down|What are|Say|Can you list|Please list|Show me]"
_CONTINENTS = "Africa Antarctica Asia Australia Europe North_America South_America".split()

_LISTS: tuple[tuple[str, str, list[str]], ...] = (
    ("[days of the week|days|weekdays|seven days of the week]", "days of the week", tables.DAYS),
    ("[months|months of the year|twelve months|names of the months]", "months", list(MONTHS)),
    (
        "[planets|eight planets|planets of the solar system|planets in order]",
        "planets",
        tables.PLANETS,
    ),
    ("[|four ][seasons|seasons of the year]", "seasons", ["Spring", "Summer", "Autumn", "Winter"]),
    (
        "[colours of the rainbow|colors of the rainbow|rainbow colours|rainbow colors]",
        "colours of the rainbow",
        "Red Orange Yellow Green Blue Indigo Violet".split(),
    ),
    (
        "[continents|seven continents|continents of the Earth]",
        "continents",
        [name.replace("_", " ") for name in _CONTINENTS],
    ),
    ("[oceans|five oceans|oceans of the Earth]", "oceans",
     "Atlantic Pacific Indian Arctic Southern".split()),
)  # fmt: skip


def _exchange(question: str, answer: str) -> Exchange:
    turns = (Turn("user", question), Turn("assistant", answer))
    return Exchange("lists and stories", question, turns, "exact", answer)


def counting(rng: random.Random) -> Exchange:
    """Count up or down, or say the alphabet."""
    if rng.random() < 0.2:
        question = say(
            rng,
            "[Say|Write|Recite|Tell me|List|What is|Give me|Show me] the [|English ][alphabet|ABC|"
            "letters of the alphabet]",
        )
        return _exchange(dress(rng, question + "."), " ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    first = rng.choice((1, 1, 1, 1, rng.randint(0, 60)))
    last = first + rng.choice((4, 9, 19, rng.randint(2, 30)))
    if rng.random() < 0.15:
        first, last = last, first
    verb = say(
        rng,
        "[Count|Please count|Can you count|Count for me|Count out loud|Write the numbers|"
        "List the numbers|Say the numbers|Give me the numbers|Count slowly|I want you to count]",
    )
    down = " [down |backwards |]" if last < first else " [up |]"
    link = say(rng, f"{down}from {{a}} [to|to|up to|until]", a=first)
    if first == 1 and rng.random() < 0.3 and verb[-1] != "s":
        link = say(rng, " [to|up to]")
    step = 1 if last > first else -1
    numbers = ", ".join(str(n) for n in range(first, last + step, step))
    question = " ".join(f"{verb}{link} {last}".split()) + rng.choice((".", "", "."))
    return _exchange(dress(rng, question), numbers + ".")


def listing(rng: random.Random) -> Exchange:
    """A numbered list of one of a few well-known sets."""
    asked, name, members = rng.choice(_LISTS)
    question = dress(rng, say(rng, f"{_ASK} [|all ]the {asked}[.|?|]"))
    lines = "\n".join(f"{n}. {member}" for n, member in enumerate(members, 1))
    return _exchange(question, f"Here are the {name}:\n\n{lines}")


_STORIES = (
    "Once there was a {c} {a} named {n}. {n} lived in a small house at the edge of a forest and "
    "liked to look at the stars.\n\nOne evening {n} saw a light between the trees. It was a lost "
    'firefly that could not find its way home. "Come with me," said {n}, and they walked '
    "together until the morning.\n\nFrom that day on the {a} and the firefly were friends, and "
    "the forest was never dark again.",
)


def story(rng: random.Random) -> Exchange:
    """A short tale about a given animal, its colour and name copied or fixed."""
    animal, colour = rng.choice(ANIMALS), rng.choice(COLOURS)
    name = name_of(rng, NAMES)
    named = rng.random() < 0.5
    coloured = rng.random() < 0.4
    about = (
        f"a {colour} {animal}" if coloured else f"{'an' if animal[0] in 'aeo' else 'a'} {animal}"
    )
    about += say(rng, " [named|called] {n}", n=name) if named else ""
    if rng.random() < 0.15:
        named, coloured, animal, about = False, False, "fox", ""
    question = say(
        rng,
        "[Tell me|Tell|Write|Write me|I want|I would like|Can you tell me|Please tell me] "
        "[a story|a short story|a tale|a little story|a bedtime story]",
    )
    question += f" about {about}" if about else ""
    answer = say(
        rng,
        rng.choice(_STORIES),
        c=colour if coloured else "little",
        a=animal,
        n=name if named else "Mira",
    )
    # A question that names the animal's name needs its letters kept.
    question = dress(rng, question + rng.choice((".", "", ".")), any_case=not named)
    return _exchange(question, answer)
