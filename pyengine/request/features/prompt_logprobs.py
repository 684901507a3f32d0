"""Log-probabilities of the prompt's tokens, and of tokens that may follow it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

from pyengine.errors import InvalidRequestError
from pyengine.logprobs import LogprobRecords, Spelling, TokenLogprob
from pyengine.messages import Extension, Submit
from pyengine.request.arguments import packed, wrong_type
from pyengine.request.features.feature import AnswerPart, Asked, Feature, Options
from pyengine.sampling import MAX_LOGPROBS

MAX_FOLLOWING = 512
"""Tokens of which one request may want the log-probability behind its prompt."""


class PromptLogProbsExtension(Extension):
    """Asks for the log-probability of each token of the prompt but the first, and of tokens that
    may follow it.

    Attributes:
        count: Number of most likely tokens to report beside it.
        first: How many of the first log-probabilities are left out: not wanted, or known from
            before a restart.
        following: Tokens whose log-probabilities behind the whole prompt are wanted too, token ids
            as u32 little-endian.
    """

    TAG: ClassVar[str] = "prompt_logprobs"

    count: int
    first: int
    following: bytes


class PromptLogProbsExtra(Extension):
    """Gives back the log-probabilities of the next tokens of the prompt.

    Attributes:
        records: Records as in :class:`pyengine.messages.Delta`; their places mean nothing.
    """

    TAG: ClassVar[str] = "prompt_logprobs"

    records: bytes


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
        following_logprobs: Token ids, at most 512: tell the log-probability of each behind the
            whole prompt; see :attr:`pyengine.completion.Completion.following_logprobs`.
    """

    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 0
    following_logprobs: Sequence[int] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        count, first = self.prompt_logprobs, self.prompt_logprobs_from
        _check("prompt_logprobs", 0 if count is None else count, MAX_LOGPROBS)
        _check("prompt_logprobs_from", first, 2**31 - 1)
        if len(self.following_logprobs) > MAX_FOLLOWING:
            raise InvalidRequestError(
                f"'following_logprobs' may name {MAX_FOLLOWING} tokens, not "
                f"{len(self.following_logprobs)}",
                param="following_logprobs",
            )
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
    following = packed("following_logprobs", options.following_logprobs, asked.info.vocab_size)
    if count is None and not following:
        return None
    if count is None:
        count, first = 0, asked.prompt_length - 1
    if first >= asked.prompt_length:
        raise InvalidRequestError(
            f"'prompt_logprobs_from' must be below {asked.prompt_length}, the prompt's tokens, not "
            f"{first}",
            param="prompt_logprobs_from",
        )
    return PromptLogProbsExtension(count, first, following.tobytes())


class PromptLogProbs(AnswerPart):
    """The log-probabilities of the prompt that came so far."""

    def __init__(
        self, submit: Submit, extension: PromptLogProbsExtension, spelling: Spelling
    ) -> None:
        self._extension = extension
        self._records = LogprobRecords(extension.count, spelling)
        tokens = memoryview(submit.tokens).cast("I")
        own = tokens[extension.first + 1 : submit.prompt_length]
        self._own = len(own)
        self._tokens = [*own, *memoryview(extension.following).cast("I")]

    def receive(self, extra: PromptLogProbsExtra) -> None:
        """Take in the records that came."""
        self._records.add_next(self._tokens, extra.records)

    def entries(self) -> list[TokenLogprob | None]:
        """Returns an entry for each token of the prompt that was scored so far; None for those left
        out.
        """
        return [*([None] * (self._extension.first + 1)), *self._records.every()[: self._own]]

    def completion(self) -> dict[str, Any]:
        """Report all of them."""
        if not self._extension.following:
            return {"prompt_logprobs": self.entries()}
        following = tuple(entry.logprob for entry in self._records.every()[self._own :])
        return {"following_logprobs": following} | (
            {"prompt_logprobs": self.entries()} if self._own else {}
        )

    def continued(self) -> PromptLogProbsExtension:
        """Leave out what has come."""
        known = self._extension.first + min(self._records.count, self._own)
        following = self._extension.following if self._records.count <= self._own else b""
        return PromptLogProbsExtension(self._extension.count, known, following)


FEATURE = Feature(PromptLogProbsExtension, _ask, PromptLogProbs, PromptLogProbsExtra)
