"""Log-probabilities of the answer's tokens."""

from typing import Any, ClassVar

from pyengine.logprobs import LogprobRecords, Spelling
from pyengine.messages import Delta, Extension, Submit
from pyengine.request.features.feature import AnswerPart, Asked, Feature


class LogProbsExtension(Extension):
    """Asks for the log-probability of each token of the answer.

    Attributes:
        count: Number of most likely tokens to report beside it.
    """

    TAG: ClassVar[str] = "logprobs"

    count: int


def _ask(asked: Asked, options: object) -> LogProbsExtension | None:
    count = asked.params.logprobs
    return None if count is None else LogProbsExtension(count)


class LogProbs(AnswerPart):
    """The log-probabilities that came so far.

    Attributes:
        records: The log-probabilities of every token.
    """

    in_updates = True

    def __init__(self, submit: Submit, extension: LogProbsExtension, spelling: Spelling) -> None:
        self.records = LogprobRecords(extension.count, spelling)

    def take(self, delta: Delta) -> None:
        """Take in the records that came."""
        self.records.add(delta.tokens, delta.logprobs)

    def update(self, text: str) -> dict[str, Any]:
        """Report the tokens whose text begins in ``text``."""
        return {"logprobs": self.records.report(text)}

    def completion(self) -> dict[str, Any]:
        """Report all of them."""
        return {"logprobs": self.records.whole()}


FEATURE = Feature(LogProbsExtension, _ask, LogProbs)
