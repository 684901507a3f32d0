"""The options of a request besides its sampling parameters, and their checks."""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from pyengine.errors import InvalidGrammarError, InvalidRequestError
from pyengine.grammar.description import Grammar
from pyengine.messages import Pooling
from pyengine.sampling import MAX_LOGPROBS, check_priority

# The compiler's limit; a longer description would only fill the Scheduler's mailbox.
MAX_GRAMMAR_BYTES = 1 << 20
MAX_TIMEOUT_S = 30 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """The options of a request besides its sampling parameters, checked when they are made.

    Attributes:
        priority: Lower runs first; 0 is usual.
        tenant: The tenant that the request is charged to when tenants share fairly, and from whose
            recent answers tokens are drafted. Tenants are not isolated, as their names can be
            guessed: give requests that must not affect each other a ``cache_salt`` each.
        cache_salt: Cached prefixes and recent answers are shared only under the same salt.
        timeout: Seconds after which the request ends with RequestTimeoutError.
        grammar: The grammar of the answer; see :mod:`pyengine.grammar`. One that cannot be enforced
            ends the request with InvalidGrammarError.
        close_grammar: End what the grammar has begun within ``max_tokens``, so that the answer
            parses; it may say less than it would have. Where the end begins depends on how soon one
            is found. Only with a grammar, or with tools.
        prediction: Text or token ids that the answer is expected to repeat in parts. Changes how
            fast the answer comes, not what it is.
        prompt_logprobs: Tell the log-probability of each token of the prompt after those before it,
            with so many most likely tokens in the place of each (0 to 20); see
            :attr:`pyengine.completion.Completion.prompt_logprobs`. The prompt is computed anew, but
            for what ``prompt_logprobs_from`` leaves out.
        prompt_logprobs_from: The first token of the prompt whose log-probability is not of
            interest, and those up to it, are left out: with 0 that of token 1 is the first.
        logits_processors: Logits processors of the engine that change the request's logits, by
            name, each with its arguments; or their names alone. See
            :mod:`pyengine.logits_processors`.
        pooling: The answer is a vector, made like this of the prompt's last hidden states, and no
            text; see :attr:`pyengine.request.generation.Generation.vector`.
        grammar_description: The grammar as the compiler reads it; made from ``grammar``.

    Raises:
        InvalidRequestError: An option is out of its range; names it.
    """

    priority: int = 0
    tenant: str | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    grammar: Grammar | None = None
    close_grammar: bool = False
    prediction: str | Sequence[int] | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 0
    logits_processors: Mapping[str, Mapping[str, Any]] | Sequence[str] | None = None
    pooling: Pooling | None = None
    grammar_description: bytes | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_priority(self.priority)
        _check_timeout(self.timeout)
        _check_prompt_logprobs(self.prompt_logprobs, self.prompt_logprobs_from)
        description = _description(self.grammar, self.close_grammar)
        object.__setattr__(self, "grammar_description", description)


class EmbedKeywords(TypedDict, total=False):
    """The keywords of ``embed``; see :class:`RequestOptions`."""

    priority: int
    tenant: str | None
    cache_salt: str | None
    timeout: float | None


class RequestKeywords(EmbedKeywords, total=False):
    """The keywords that ``generate`` and ``chat`` share; see :class:`RequestOptions`."""

    close_grammar: bool
    prediction: str | Sequence[int] | None
    prompt_logprobs: int | None
    prompt_logprobs_from: int
    logits_processors: Mapping[str, Mapping[str, Any]] | Sequence[str] | None


class GenerateKeywords(RequestKeywords, total=False):
    """The keywords of ``generate``; see :class:`RequestOptions`."""

    grammar: Grammar | None


def _check_timeout(timeout: float | None) -> None:
    if timeout is None:
        return
    if not isinstance(timeout, int | float):
        raise wrong_type("timeout", "a number of seconds", timeout)
    if not 0 < timeout <= MAX_TIMEOUT_S:
        raise InvalidRequestError(
            f"'timeout' must be above 0 and at most {MAX_TIMEOUT_S} seconds", param="timeout"
        )


def _check_prompt_logprobs(count: int | None, first: int) -> None:
    for param, given, most in (
        ("prompt_logprobs", 0 if count is None else count, MAX_LOGPROBS),
        ("prompt_logprobs_from", first, 2**31 - 1),
    ):
        if not isinstance(given, int) or isinstance(given, bool):
            raise wrong_type(param, "an integer", given)
        if not 0 <= given <= most:
            raise InvalidRequestError(
                f"'{param}' must be from 0 to {most}, not {given}", param=param
            )
    if first and count is None:
        raise InvalidRequestError(
            "'prompt_logprobs_from' needs 'prompt_logprobs'", param="prompt_logprobs_from"
        )


def _description(grammar: Grammar | None, close: bool) -> bytes | None:
    """The grammar's description for the compiler; refused where it is too long to be sent."""
    if not isinstance(close, bool):
        raise InvalidRequestError("'close_grammar' must be a bool", param="close_grammar")
    if grammar is None:
        if close:
            raise InvalidRequestError(
                "'close_grammar' needs a grammar to close.", param="close_grammar"
            )
        return None
    if not isinstance(grammar, Grammar):
        raise wrong_type("grammar", "a Grammar, such as json_schema(...)", grammar)
    description = grammar.description()
    if len(description) > MAX_GRAMMAR_BYTES:
        raise InvalidGrammarError(
            f"the grammar's description has {len(description)} bytes; "
            f"at most {MAX_GRAMMAR_BYTES} are taken",
            param="grammar",
        )
    return description


def wrong_type(param: str, wanted: str, value: object) -> InvalidRequestError:
    """The error for an argument that is of another type than it must be."""
    shown = reprlib.repr(value)
    return InvalidRequestError(
        f"'{param}' must be {wanted}, not {shown}", param=param, code="invalid_type"
    )
