"""Marks: each row that samples gives back the mark of its request."""

from dataclasses import dataclass
from typing import Any, ClassVar

from pyengine.logprobs import Spelling
from pyengine.messages import Extension, Submit
from pyengine.request.features.feature import AnswerPart, Asked, Feature, Options


class MarksExtension(Extension):
    """Asks for marks.

    Attributes:
        mark: The mark.
    """

    TAG: ClassVar[str] = "marks"

    mark: int


class MarkExtra(Extension):
    """Gives a mark back.

    Attributes:
        mark: The mark.
    """

    TAG: ClassVar[str] = "mark"

    mark: int


@dataclass(frozen=True, kw_only=True)
class MarksOptions(Options):
    """The option for marks.

    Attributes:
        mark: The mark of every row of the request.
    """

    mark: int | None = None


def _ask(asked: Asked, options: MarksOptions) -> MarksExtension | None:
    return None if options.mark is None else MarksExtension(options.mark)


class Marks(AnswerPart):
    """The marks that came so far."""

    def __init__(self, submit: Submit, extension: MarksExtension, spelling: Spelling) -> None:
        self._marks: list[int] = []

    def receive(self, extra: MarkExtra) -> None:
        """Keep a mark."""
        self._marks.append(extra.mark)

    def completion(self) -> dict[str, Any]:
        """Report all of them."""
        return {"marks": self._marks}


FEATURE = Feature(MarksExtension, _ask, Marks, MarkExtra)
