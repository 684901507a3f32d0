"""What a model is asked: a question in words, and its options as the model is to write them."""

import json
from collections.abc import Sequence

from pyengine.decisions.questions import Choice, Option, Predicate, Question

_PREDICATE = "Is this true of the above?\n{instructions}\nAnswer with yes or no, and nothing else."
_CHOICE = "{instructions}\nAnswer with one of these, and nothing else:\n{options}"
_SCORE = (
    "{instructions}\nAnswer with one of these levels, from the lowest to the highest, and nothing "
    "else:\n{options}"
)


def worded(question: Question, options: Sequence[Option], spelled: Sequence[str]) -> str:
    """A question about what stands before it."""
    if isinstance(question, Predicate):
        return _PREDICATE.format(instructions=question.instructions)
    lines = [
        f"- {text}: {option.description}" if option.description else f"- {text}"
        for option, text in zip(options, spelled, strict=True)
    ]
    form = _CHOICE if isinstance(question, Choice) else _SCORE
    return form.format(instructions=question.instructions, options="\n".join(lines))


def spellings(options: Sequence[Option]) -> list[str]:
    """How a model is to write options: as they are, and in quotes where a truth value is alike."""
    truths = {_truth(each.value) for each in options if isinstance(each.value, bool)}
    return [
        _truth(value)
        if isinstance(value, bool)
        else json.dumps(value)
        if value in truths
        else value
        for value in (each.value for each in options)
    ]


def _truth(value: bool) -> str:
    return "true" if value else "false"
