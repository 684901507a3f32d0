"""Many ways of asking the same thing."""

import random
import re

__all__ = ["dress", "say"]

_CHOICE = re.compile(r"\[([^\[\]]*)\]")

_BEFORE = (
    "Hi! ", "Hello! ", "Hey, ", "Hello, ", "Please ", "OK, ", "Okay. ", "Now, ", "So, ",
    "Tell me, ", "Tell me: ", "Quick question: ", "Question: ", "I have a question. ", "Well, ",
    "Thanks! ", "Great. ", "Hi there! ", "Good morning. ", "Excuse me, ", "Alright, ", "And ",
)  # fmt: skip
_AFTER = (" Thanks!", " Thank you.", " Please.", " Please answer briefly.", " :)", "!", "??")


def say(rng: random.Random, pattern: str, **slots: object) -> str:
    """Choose one alternative of every ``[a|b|c]`` and then fill ``{slots}``.

    Brackets may be nested; the innermost are chosen first.
    """
    while True:
        chosen = _CHOICE.sub(lambda m: rng.choice(m.group(1).split("|")), pattern)
        if chosen == pattern:
            break
        pattern = chosen
    for name, value in slots.items():
        pattern = pattern.replace("{" + name + "}", str(value))
    return pattern


def dress(rng: random.Random, question: str, any_case: bool = True) -> str:
    """Vary a question as people type it: openings, thanks, case, punctuation.

    With ``any_case`` false the letters are left alone, for questions whose
    answer has to keep them.
    """
    roll = rng.random()
    if roll < 0.55:
        return question
    if any_case and roll < 0.66:
        return question.lower() if rng.random() < 0.7 else question.lower().rstrip("?.!")
    if any_case and roll < 0.73:
        return question.rstrip("?.!")
    if any_case and roll < 0.74:
        return question.rstrip("?.!").upper()
    if any_case and roll < 0.9:
        before = rng.choice(_BEFORE)
        lower = not before.rstrip().endswith(("!", ".")) and not question.startswith("I ")
        question = before + (question[0].lower() + question[1:] if lower else question)
    if any_case and roll > 0.84:
        question += rng.choice(_AFTER)
    return question
