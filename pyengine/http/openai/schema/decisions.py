"""Questions about an input that probabilities answer: OpenAI's decisions."""

from typing import Any

import msgspec

from pyengine.http.scheduled import ScheduledRequest


class PredicateParam(msgspec.Struct, tag_field="type", tag="predicate", forbid_unknown_fields=True):
    """A statement of which the probability that it is true is wanted."""

    instructions: str | list[dict[str, Any]]
    name: str | None = None


class ChoiceOption(msgspec.Struct, forbid_unknown_fields=True):
    """An option; true and ``"true"`` are different ones."""

    value: str | bool
    description: str | None = None


class ChoiceParam(msgspec.Struct, tag_field="type", tag="choice", forbid_unknown_fields=True):
    """A choice among options."""

    instructions: str | list[dict[str, Any]]
    choices: list[ChoiceOption]
    name: str | None = None


class ScoreLevel(msgspec.Struct, forbid_unknown_fields=True):
    """A level."""

    label: str
    description: str | None = None


class ScoreParam(msgspec.Struct, tag_field="type", tag="score", forbid_unknown_fields=True):
    """A rating by levels."""

    instructions: str | list[dict[str, Any]]
    levels: list[ScoreLevel]
    name: str | None = None


class DecisionRequest(ScheduledRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/decisions``: questions about an input, which is computed once.

    The input is a text, or messages, calls and their results as in ``POST /v1/responses``; parts of
    type input_json are written as JSON.

    Attributes:
        questions: The questions, 1 to 400.
        orders: In how many orders, each beginning with another, the options are told to the model;
            the means are given.
    """

    input: str | list[dict[str, Any]]
    questions: list[PredicateParam | ChoiceParam | ScoreParam]
    orders: int | None = None
    user: str | None = None


class PredicateObject(msgspec.Struct, tag_field="type", tag="predicate", gc=False):
    """How likely the statement is true."""

    probability: float
    name: str | None = None


class ChoiceProbability(msgspec.Struct, gc=False):
    """How likely an option is."""

    value: str | bool
    probability: float


class ChoiceObject(msgspec.Struct, tag_field="type", tag="choice"):
    """The likeliest option, its probability, and those of all, which sum to 1."""

    choice: str | bool
    confidence: float
    probabilities: list[ChoiceProbability]
    name: str | None = None


class ScoreProbability(msgspec.Struct, gc=False):
    """How likely a level is, by its number from 0 and its label."""

    value: int
    label: str
    probability: float


class ScoreAnswerObject(msgspec.Struct, tag_field="type", tag="score"):
    """The mean of the levels' numbers; the likeliest one's probability, and those of all."""

    score: float
    confidence: float
    probabilities: list[ScoreProbability]
    name: str | None = None


class DecisionInputDetails(msgspec.Struct, gc=False):
    """How many tokens came from the prefix cache; what each prompt adds to it is not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class DecisionOutputDetails(msgspec.Struct, frozen=True, gc=False):
    """Nothing is generated."""

    reasoning_tokens: int = 0


class DecisionUsage(msgspec.Struct, gc=False):
    """Tokens of all prompts: one for each place where options part, all behind the input."""

    input_tokens: int
    input_tokens_details: DecisionInputDetails
    total_tokens: int
    output_tokens: int = 0
    output_tokens_details: DecisionOutputDetails = DecisionOutputDetails()


class DecisionObject(msgspec.Struct, kw_only=True):
    """The answers, in the order of the questions."""

    answers: list[PredicateObject | ChoiceObject | ScoreAnswerObject]
    model: str
    usage: DecisionUsage
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
