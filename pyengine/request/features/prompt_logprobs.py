"""Log-probabilities of the prompt's tokens."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from pyengine.errors import InvalidRequestError
from pyengine.logprobs import LogprobRecords, Spelling, TokenLogprob
from pyengine.messages import Delta, Extension, Submit
from pyengine.request.arguments import wrong_type
from pyengine.request.features.feature import AnswerPart, Asked, Feature, Options
from pyengine.sampling import MAX_LOGPROBS


class PromptLogProbsExtension(Extension):
    """Asks for the log-probability of each token of the prompt but the first.

    Attributes:
        count: Number of most likely tokens to report beside it.
        first: How many of the first log-probabilities are left out: not wanted, or known from
            before a restart.
    """

    TAG: ClassVar[str] = "prompt_logprobs"

    count: int
    first: int


class PromptLogProbsKeywords(TypedDict, total=False):
    """The keywords for log-probabilities of prompts; see :class:`PromptLogProbsOptions`."""

    prompt_logprobs: int | None
    prompt_logprobs_from: int


@dataclass(frozen=True, kw_only=True)
class PromptLogProbsOptions(Options):
    """The options for log-probabilities of prompts.

    Attributes:
        prompt_logprobs: Tell the log-probability of each token of the prompt after those before it,
            with this number of most likely tokens in the place of each (0 to 20); see
            :attr:`pyengine.completion.Completion.prompt_logprobs`. The prompt is computed anew, but
            for what ``prompt_logprobs_from`` leaves out.
        prompt_logprobs_from: The first token of the prompt whose log-probability is not of
            interest, and those up to it, are left out: with 0 that of token 1 is the first.
    """

    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        count, first = self.prompt_logprobs, self.prompt_logprobs_from
        _check("prompt_logprobs", 0 if count is None else count, MAX_LOGPROBS)
        _check("prompt_logprobs_from", first, 2**31 - 1)
        if first and count is None:
            raise InvalidRequestError(
                "'prompt_logprobs_from' needs 'prompt_logprobs'", param="prompt_logprobs_from"
            )


def _check(param: str, given: int, most: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool):
        raise wrong_type(param, "an integer", given)
    if not 0 <= given <= most:
        raise InvalidRequestError(f"'{param}' must be from 0 to {most}, not {given}", param=param)


def _ask(asked: Asked, options: PromptLogProbsOptions) -> PromptLogProbsExtension | None:
    count, first = options.prompt_logprobs, options.prompt_logprobs_from
    if count is None:
        return None
    if first >= asked.prompt_length:
        raise InvalidRequestError(
            f"'prompt_logprobs_from' must be below {asked.prompt_length}, the prompt's tokens, not "
            f"{first}",
            param="prompt_logprobs_from",
        )
    return PromptLogProbsExtension(count, first)


class PromptLogProbs(AnswerPart):
    """The log-probabilities of the prompt that came so far."""

    def __init__(
        self, submit: Submit, extension: PromptLogProbsExtension, spelling: Spelling
    ) -> None:
        self._extension = extension
        self._records = LogprobRecords(extension.count, spelling)
        tokens = memoryview(submit.tokens).cast("I")
        self._tokens = tokens[extension.first + 1 : submit.prompt_length]

    def take(self, delta: Delta) -> None:
        """Take in the records that came."""
        if delta.prompt_logprobs:
            self._records.add_next(self._tokens, delta.prompt_logprobs)

    def entries(self) -> list[TokenLogprob | None]:
        """Returns an entry for each token that was scored so far; None for those left out."""
        return [*([None] * (self._extension.first + 1)), *self._records.every()]

    def completion(self) -> dict[str, Any]:
        """Report all of them."""
        return {"prompt_logprobs": self.entries()}

    def continued(self) -> PromptLogProbsExtension:
        """Leave out what has come."""
        known = self._extension.first + self._records.count
        return PromptLogProbsExtension(self._extension.count, known)


FEATURE = Feature(PromptLogProbsExtension, _ask, PromptLogProbs)
