"""Small sums, and questions about numbers."""

import random

from tools.demo_model.dialogue import Exchange, Turn
from tools.demo_model.wording import dress, say
from tools.demo_model.words import ITEMS, NAMES, plural

__all__ = ["comparison", "count_story", "division", "minus", "plus", "times"]

_ASK = (
    "[What is|What's|How much is|Calculate|Compute|Can you compute|Work out|Please calculate|"
    "Tell me|What does|Could you work out|Solve|I need to know|Do you know what is]"
)


def _sum(
    rng: random.Random, skill: str, a: int, b: int, sign: str, words: str, result: int, key: str
) -> Exchange:
    """One sum asked with a sign or in words; answered as an equation."""
    verb = say(rng, _ASK)
    operator = sign if rng.random() < 0.7 else say(rng, words)
    text = (
        f"{a}{operator}{b}" if operator == sign and rng.random() < 0.12 else (f"{a} {operator} {b}")
    )
    form = rng.random()
    if form < 0.2:
        question = text + rng.choice(("", " = ?", " =", "?", " = "))
        question = question.strip()
    else:
        tail = " equal?" if verb == "What does" else rng.choice(("?", "?", ".", ""))
        question = dress(rng, f"{verb} {text}{tail}")
    shown = "x" if skill == "times tables" and operator != sign and sign != "/" else sign
    answer = f"{a} {shown} {b} = {result}."
    turns = (Turn("user", question), Turn("assistant", answer))
    return Exchange(skill, key or question, turns, "contains", str(result))


def plus(rng: random.Random) -> Exchange:
    """Addition, mostly with sums up to 100; a pair is held out in both orders."""
    top = rng.choice((10, 20, 50, 100, 100, 100, 100, 100))
    a, b = rng.randint(0, top), rng.randint(0, top)
    if a + b > 100 and rng.random() < 0.7:
        a, b = 100 - a, 100 - b
    key = f"plus {min(a, b)} {max(a, b)}"
    return _sum(rng, "addition", a, b, "+", "[plus|plus|and|added to]", a + b, key)


def minus(rng: random.Random) -> Exchange:
    """Subtraction up to 100, seldom below zero; a pair of operands is held out."""
    top = rng.choice((10, 20, 50, 100, 100, 100, 100, 100))
    a, b = rng.randint(0, top), rng.randint(0, top)
    if a < b and rng.random() < 0.9:
        a, b = b, a
    key = f"minus {a} {b}"
    return _sum(rng, "subtraction", a, b, "-", "[minus|minus|take away|less]", a - b, key)


def times(rng: random.Random) -> Exchange:
    """The times tables to 12, held out by wording: the tables are memory."""
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    sign = rng.choice(("*", "*", "x", "\u00d7"))
    return _sum(rng, "times tables", a, b, sign, "[times|times|multiplied by]", a * b, "")


def division(rng: random.Random) -> Exchange:
    """Divisions without remainder within the times tables."""
    b, result = rng.randint(1, 12), rng.randint(0, 12)
    return _sum(rng, "times tables", b * result, b, "/", "[divided by|over]", result, "")


def comparison(rng: random.Random) -> Exchange:
    """Larger and smaller, next and previous, double and half, even and odd."""
    a, b = rng.sample(range(101), 2)
    kind = rng.randrange(7)
    if kind < 2:
        larger = kind == 0
        word = say(rng, "[larger|bigger|greater|more]" if larger else "[smaller|less|lower]")
        question = say(rng, "[Which is|Which number is|What is] {w}, {a} or {b}?", w=word, a=a, b=b)
        value = str(max(a, b) if larger else min(a, b))
        answer = f"{value} is {word} than {min(a, b) if larger else max(a, b)}."
    elif kind == 2:
        question = say(rng, "[What|Which] number [comes|is] [right |]after {a}?", a=a)
        value, answer = str(a + 1), f"The number after {a} is {a + 1}."
    elif kind == 3:
        question = say(rng, "[What|Which] number [comes|is] [right |]before {a}?", a=a + 1)
        value, answer = str(a), f"The number before {a + 1} is {a}."
    elif kind == 4:
        a = a // 2
        question = say(rng, "[What is|Tell me|What's] [double|twice] {a}?", a=a)
        value, answer = str(2 * a), f"Twice {a} is {2 * a}."
    elif kind == 5:
        a = a // 2 * 2
        question = say(rng, "[What is|Tell me|What's] half of {a}?", a=a)
        value, answer = str(a // 2), f"Half of {a} is {a // 2}."
    else:
        value = "odd" if a % 2 else "even"
        question = say(rng, "Is {a} [even or odd|odd or even|an even or an odd number]?", a=a)
        answer = f"{a} is {value}."
    question = dress(rng, question)
    turns = (Turn("user", question), Turn("assistant", answer))
    return Exchange("numbers", question, turns, "contains", value)


def count_story(rng: random.Random) -> Exchange:
    """A one-step word problem with operands up to 20."""
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    a, b = rng.randint(2, 20), rng.randint(1, 20)
    if rng.random() < 0.5:
        story = say(
            rng,
            "{n} has {a} {i} and [gets|buys|finds|is given] {b} more. How many {i} "
            "[does {n} have|does {n} have now|are there now|are there]?",
        )
        sign, result = "+", a + b
    else:
        a, b = max(a, b), min(a, b)
        story = say(
            rng,
            "{n} has {a} {i} and [gives away|loses|sells] {b}. How many {i} "
            "[are left|does {n} have left|remain|does {n} have now]?",
        )
        sign, result = "-", a - b
    question = say(rng, story, n=name, a=a, b=b, i=plural(item))
    answer = f"{a} {sign} {b} = {result}, so the answer is {result} {item}s."
    turns = (Turn("user", question), Turn("assistant", answer))
    return Exchange("word problems", f"story {sign} {a} {b}", turns, "contains", str(result))
