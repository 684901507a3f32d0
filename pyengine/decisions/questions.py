"""The questions that may be asked about an input, and their answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyengine.errors import InvalidRequestError

MAX_QUESTIONS = 400
MAX_CHOICES = 255


@dataclass(frozen=True, kw_only=True)
class Predicate:
    """A statement of which the probability that it is true is wanted.

    Attributes:
        instructions: The statement, or a question that is answered by yes or no.
        name: Comes back with the answer.
    """

    instructions: str
    name: str | None = None


@dataclass(frozen=True)
class Option:
    """One of the options of a choice, or of the levels of a score.

    Attributes:
        value: The option.
        description: When it applies.
    """

    value: str | bool
    description: str | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A choice among options without an order.

    Attributes:
        instructions: What is to be chosen.
        choices: The options, 2 to 255, all different; true and ``"true"`` are.
        name: Comes back with the answer.
    """

    instructions: str
    choices: Sequence[Option]
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Score:
    """A rating by ordered levels.

    Attributes:
        instructions: What is to be rated.
        levels: The levels from the lowest to the highest, 2 to 255, all different.
        name: Comes back with the answer.
    """

    instructions: str
    levels: Sequence[Option]
    name: str | None = None


Question = Predicate | Choice | Score


@dataclass(frozen=True)
class PredicateAnswer:
    """The answer to a :class:`Predicate`: how likely the statement is true."""

    probability: float
    name: str | None = None


@dataclass(frozen=True)
class ChoiceAnswer:
    """The answer to a :class:`Choice`.

    Attributes:
        choice: The likeliest option; of equal ones the first.
        confidence: Its probability.
        probabilities: Each option and its probability, in the order of the question; the sum is 1.
        name: As in the question.
    """

    choice: str | bool
    confidence: float
    probabilities: tuple[tuple[str | bool, float], ...]
    name: str | None = None


@dataclass(frozen=True)
class ScoreAnswer:
    """The answer to a :class:`Score`.

    Attributes:
        score: The mean of the levels, which are counted from 0, weighted by their probabilities.
        confidence: The probability of the likeliest level.
        probabilities: Each level and its probability, in the order of the question; the sum is 1.
        name: As in the question.
    """

    score: float
    confidence: float
    probabilities: tuple[tuple[str, float], ...]
    name: str | None = None


Answer = PredicateAnswer | ChoiceAnswer | ScoreAnswer


def options_of(question: Question) -> list[Option]:
    """The options that a question is answered by."""
    if isinstance(question, Predicate):
        return [Option("yes"), Option("no")]
    return list(question.choices if isinstance(question, Choice) else question.levels)


def check_questions(questions: Sequence[Question]) -> None:
    """Check the number of questions and each of them.

    Raises:
        InvalidRequestError: One is out of its bounds; names it.
    """
    if not 1 <= len(questions) <= MAX_QUESTIONS:
        raise InvalidRequestError(
            f"'questions' must hold 1 to {MAX_QUESTIONS} questions, not {len(questions)}",
            param="questions",
        )
    for number, question in enumerate(questions):
        _check(question, f"questions[{number}]")


def _check(question: Question, at: str) -> None:
    if not question.instructions.strip():
        raise InvalidRequestError(
            f"'{at}.instructions' must not be empty", param=f"{at}.instructions"
        )
    if isinstance(question, Predicate):
        return
    at += ".choices" if isinstance(question, Choice) else ".levels"
    options = options_of(question)
    if not 2 <= len(options) <= MAX_CHOICES:
        raise InvalidRequestError(
            f"'{at}' must hold 2 to {MAX_CHOICES} entries, not {len(options)}", param=at
        )
    found = {(type(option.value), option.value) for option in options}
    if len(found) != len(options):
        raise InvalidRequestError(f"'{at}' must not hold the same entry twice", param=at)
    if not all(isinstance(each.value, bool) or each.value.strip() for each in options):
        raise InvalidRequestError(f"'{at}' must not hold an empty entry", param=at)


def answered(question: Question, probabilities: Sequence[float]) -> Answer:
    """The answer to a question whose options have these probabilities."""
    if isinstance(question, Predicate):
        return PredicateAnswer(probabilities[0], question.name)
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    if isinstance(question, Choice):
        values = [option.value for option in question.choices]
        pairs = tuple(zip(values, probabilities, strict=True))
        return ChoiceAnswer(values[best], probabilities[best], pairs, question.name)
    labels = [str(level.value) for level in question.levels]
    mean = sum(level * probability for level, probability in enumerate(probabilities))
    pairs_of_levels = tuple(zip(labels, probabilities, strict=True))
    return ScoreAnswer(mean, probabilities[best], pairs_of_levels, question.name)
