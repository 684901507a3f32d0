"""Repeating exactly, spelling, and remembering what was said."""

import random

from tools.demo_model.dialogue import Exchange, Turn
from tools.demo_model.skills.prose import stdlib_words
from tools.demo_model.wording import dress, say
from tools.demo_model.words import ANIMALS, CITIES, COLOURS, ITEMS, JOBS, NAMES, invented, name_of

__all__ = ["recall", "repeat", "spell"]

_MARKS = ("", "", "", ".", "!", "?", "...")


def _phrase(rng: random.Random) -> str:
    """One to ten words of any kind, seldom sensible, sometimes with numbers."""
    pools = (NAMES, CITIES, ITEMS, COLOURS, ANIMALS, JOBS)
    words = []
    for _ in range(rng.randint(1, 10)):
        roll = rng.random()
        if roll < 0.5:
            word = rng.choice(stdlib_words())
        elif roll < 0.75:
            word = rng.choice(rng.choice(pools))
        elif roll < 0.9:
            word = invented(rng)
        else:
            word = str(rng.randint(0, 10 ** rng.randint(1, 5)))
        words.append(word)
    text = " ".join(words)
    roll = rng.random()
    if roll < 0.5:
        text = text[0].upper() + text[1:]
    elif roll < 0.55:
        text = text.upper()
    if len(words) > 3 and rng.random() < 0.3:
        text = text.replace(" ", ", ", 1)
    return text + rng.choice(_MARKS)


def repeat(rng: random.Random) -> Exchange:
    """Say a phrase again, letter for letter, held out by phrase."""
    phrase = _phrase(rng)
    form = rng.randrange(3)
    if form == 0:
        lead = say(
            rng,
            "[Please |][Repeat|Repeat after me|Repeat this|Repeat exactly|Say|Say this|Echo|Copy|"
            "Copy this|Write|Repeat the following|Repeat this phrase|Repeat this sentence|"
            "Repeat the phrase|Say exactly|Say back to me|Repeat this exactly]:",
        )
        question = f"{lead}{rng.choice((' ', ' ', chr(10)))}{phrase}"
    elif form == 1:
        question = say(
            rng,
            "[Please |Can you |Could you |]"
            '[repeat|say|echo|copy|write|repeat the phrase|repeat the words] "{p}"'
            "[| exactly| please| for me|.|?]",
            p=phrase,
        )
        question = question[0].upper() + question[1:]
    else:
        phrase = phrase.rstrip(".!?")
        question = say(rng, "[Repeat after me|Say|Repeat|Please say|Please repeat] {p}", p=phrase)
    turns = (Turn("user", question), Turn("assistant", phrase))
    return Exchange("repeating", phrase, turns, "exact", phrase)


def spell(rng: random.Random) -> Exchange:
    """Spell a word letter by letter, held out by word."""
    roll = rng.random()
    if roll < 0.6:
        word = rng.choice(stdlib_words())
    elif roll < 0.8:
        word = rng.choice(rng.choice((NAMES, CITIES, ITEMS, COLOURS, ANIMALS, JOBS)))
    else:
        word = invented(rng)
    if rng.random() < 0.12:
        word = word.capitalize()
    quoted = rng.choice((word, word, f'"{word}"'))
    question = say(
        rng,
        "[[Please |Can you |Could you |]spell [the word |the word |]{w}[| for me| letter by letter|"
        " please]|How [do you|do I|would you|is] spell [the word |]{w}|How is {w} spelled|"
        "[What are|Give me|Write] the letters [of|in] [the word |]{w}|Spell: {w}]",
        w=quoted,
    ).replace("is spell", "do you spell")
    question = question[0].upper() + question[1:] + rng.choice(("", ".", "?"))
    answer = f"{word} is spelled {'-'.join(word)}."
    turns = (Turn("user", question), Turn("assistant", answer))
    return Exchange("spelling", f"spell {word}", turns, "contains", "-".join(word))


def recall(rng: random.Random) -> Exchange:
    """Be told a name, a place or a liking, and say it when asked later."""
    kind = rng.randrange(3)
    if kind == 0:
        value = name_of(rng, NAMES)
        told = say(rng, "[My name is|I am|I'm|Call me|Hi, my name is|Hello, I am|Hi, I'm] {v}.")
        reply = "Nice to meet you, {v}! How can I help you?"
        asked = "[What is my name|What's my name|Do you remember my name|Who am I|Say my name]?"
        answer = "Your name is {v}."
    elif kind == 1:
        value = name_of(rng, CITIES)
        told = "[I live in|I come from|I am from|My home is] {v}."
        reply = "{v} sounds like a good place to be. How can I help you?"
        asked = "[Where do I live|Where am I from|Which city did I name|Do you know where I live]?"
        answer = "You told me {v}."
    else:
        value = rng.choice(COLOURS)
        told = "[My favourite|The best|My favorite] colour is {v}."
        reply = "{v} is a lovely colour. How can I help you?"
        asked = "[What|Which] [is my favourite colour|colour do I like|is my favorite color]?"
        answer = "Your favourite colour is {v}."
    told, reply, answer = (say(rng, text, v=value) for text in (told, reply, answer))
    asked = dress(rng, say(rng, asked))
    turns = (
        Turn("user", told),
        Turn("assistant", reply[0].upper() + reply[1:]),
        Turn("user", asked),
        Turn("assistant", answer),
    )
    return Exchange("remembering", told + asked, turns, "contains", value)
