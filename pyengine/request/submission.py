"""From a caller's request to the Submit message: checked, tokenized, within the context.

::

    prompt, params, options ──► check ──► token ids ──► what fits the context ──► Submit
"""

import hashlib
import reprlib
import secrets
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec

from pyengine._core import Stage, Timeline
from pyengine.errors import ContextLengthError, InvalidGrammarError, InvalidRequestError
from pyengine.grammar.description import Grammar
from pyengine.messages import Pooling, RequestKey, Submit
from pyengine.queues import EngineInfo
from pyengine.request.penalties import allowed_tokens, bad_words, dry_breakers, logit_bias
from pyengine.sampling import MAX_LOGPROBS, SamplingParams, check_priority, pack_sampling
from pyengine.tokenizer import Tokenizer, longest_prediction

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


class RequestBuilder:
    """Makes requests for a running engine. Lives on the loop of its callers.

    Attributes:
        tokenizer: The model's tokenizer.
        timeline: Takes the spans of tokenizing.
    """

    def __init__(self, tokenizer: Tokenizer, timeline: Timeline) -> None:
        self.tokenizer = tokenizer
        self.timeline = timeline

    def tokens(self, text: str, info: EngineInfo, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a prompt.

        Raises:
            ContextLengthError: It is so long that it cannot fit the context.
        """
        self.timeline.begin()
        self.tokenizer.check_length(text, info.max_context)
        token_ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        self.timeline.end_span(Stage.TOKENIZE)
        return token_ids

    def submit(
        self,
        key: RequestKey,
        prompt: str | Sequence[int],
        params: SamplingParams,
        options: RequestOptions,
        info: EngineInfo,
    ) -> Submit:
        """The message that begins request ``key``, of ``params`` that were validated.

        Raises:
            InvalidRequestError: The prompt or a token id is none; names it.
            ContextLengthError: Prompt and ``max_tokens`` do not fit the context.
        """
        ids = self.tokens(prompt, info) if isinstance(prompt, str) else prompt
        token_ids = _packed("prompt", ids, info)
        if options.pooling is not None:
            max_tokens = _no_tokens(len(token_ids), info, 1)
        elif params.max_tokens == 0:
            max_tokens = _no_tokens(len(token_ids), info, 0)
        else:
            max_tokens = _max_tokens(len(token_ids), params, info)
        if options.prompt_logprobs_from >= len(token_ids):
            raise InvalidRequestError(
                f"'prompt_logprobs_from' must be below {len(token_ids)}, the prompt's tokens, not "
                f"{options.prompt_logprobs_from}",
                param="prompt_logprobs_from",
            )
        now, timeout = time.monotonic_ns(), options.timeout
        return Submit(
            key=key,
            tokens=token_ids.tobytes(),
            prompt_length=len(token_ids),
            max_tokens=max_tokens,
            min_tokens=params.min_tokens,
            sampling=pack_sampling(params, _seed(params)),
            logit_bias=logit_bias(params, info.vocab_size),
            bad_words=bad_words(params, self.tokenizer, info.vocab_size),
            stop_token_ids=(
                *(() if params.ignore_eos else self.tokenizer.eos_token_ids),
                *params.stop_token_ids,
            ),
            stop=params.stop,
            include_stop=params.include_stop,
            skip_special_tokens=params.skip_special_tokens,
            priority=options.priority,
            tenant=number_of("tenant", options.tenant),
            cache_salt=number_of("cache_salt", options.cache_salt),
            arrival_ns=now,
            deadline_ns=0 if timeout is None else now + int(timeout * 1e9),
            grammar=options.grammar_description,
            close_grammar=options.close_grammar,
            prediction=self._prediction(options.prediction, info),
            logprobs=params.logprobs,
            dry_breakers=dry_breakers(params, self.tokenizer),
            allowed_tokens=allowed_tokens(params, info.vocab_size),
            pooling=options.pooling,
            prompt_logprobs=options.prompt_logprobs,
            prompt_logprobs_from=options.prompt_logprobs_from,
            logits_processors=_processors(options.logits_processors, info),
        )

    def _prediction(self, prediction: str | Sequence[int] | None, info: EngineInfo) -> bytes:
        """The tokens of a prediction, as messages carry them."""
        if prediction is None:
            return b""
        if isinstance(prediction, str):
            prediction = longest_prediction(prediction, info.max_context)
            prediction = self.tokenizer.encode(prediction, add_special_tokens=False)
        return _packed("prediction", prediction, info)[: info.max_context].tobytes()


def _packed(param: str, token_ids: Sequence[int], info: EngineInfo) -> "array[int]":
    """Token ids as messages carry them, u32 each; refuses values that are no token ids."""
    if isinstance(token_ids, bytes | bytearray):
        raise _wrong_type(param, "text or token ids", token_ids)
    try:
        packed = array("I", token_ids)
    except TypeError:
        raise _wrong_type(param, "text or token ids", token_ids) from None
    except OverflowError:
        packed = array("I", [info.vocab_size])
    if packed and max(packed) >= info.vocab_size:
        raise InvalidRequestError(f"token ids must be from 0 to {info.vocab_size - 1}", param=param)
    return packed


def _wrong_type(param: str, wanted: str, value: object) -> InvalidRequestError:
    shown = reprlib.repr(value)
    return InvalidRequestError(
        f"'{param}' must be {wanted}, not {shown}", param=param, code="invalid_type"
    )


def checked_params(params: SamplingParams | None, default: SamplingParams) -> SamplingParams:
    """``params`` validated, or ``default`` for None.

    Raises:
        InvalidRequestError: ``params`` is of another type, or a parameter is out of its range.
    """
    if params is None:
        return default
    if not isinstance(params, SamplingParams):
        raise _wrong_type("params", "SamplingParams(...)", params)
    params.validate()
    return params


def _check_timeout(timeout: float | None) -> None:
    if timeout is None:
        return
    if not isinstance(timeout, int | float):
        raise _wrong_type("timeout", "a number of seconds", timeout)
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
            raise _wrong_type(param, "an integer", given)
        if not 0 <= given <= most:
            raise InvalidRequestError(
                f"'{param}' must be from 0 to {most}, not {given}", param=param
            )
    if first and count is None:
        raise InvalidRequestError(
            "'prompt_logprobs_from' needs 'prompt_logprobs'", param="prompt_logprobs_from"
        )


def _processors(
    asked: Mapping[str, Mapping[str, Any]] | Sequence[str] | None, info: EngineInfo
) -> bytes | None:
    """The logits processors of a request as messages carry them; None for none."""
    if not asked:
        return None
    arguments = asked if isinstance(asked, Mapping) else {name: {} for name in asked}
    param, known = "logits_processors", info.logits_processors
    for name, given in arguments.items():
        if not isinstance(given, Mapping):
            raise _wrong_type(f"{param}.{name}", "an object of arguments", given)
        if name not in known:
            there = f"the engine has: {', '.join(known)}" if known else "the engine has none"
            raise InvalidRequestError(
                f"there is no logits processor {reprlib.repr(name)}; {there}. The setting "
                "'logits_processors' (--logits-processors) declares them",
                param=param,
            )
    try:
        return msgspec.json.encode(arguments)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"'{param}' has arguments that JSON does not have: {error}", param=param
        ) from None


def _no_tokens(prompt_tokens: int, info: EngineInfo, limit: int) -> int:
    """``limit`` for a request that no tokens follow; refuses a prompt that cannot fit."""
    if not prompt_tokens:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    if prompt_tokens > info.max_context:
        raise ContextLengthError(
            f"this model's maximum context length is {info.max_context} tokens; the prompt has "
            f"{prompt_tokens}",
            param="prompt",
        )
    return limit


def _max_tokens(prompt_tokens: int, params: SamplingParams, info: EngineInfo) -> int:
    """The most tokens the request may generate; refuses a request that cannot fit."""
    if not prompt_tokens:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    if not all(token < info.vocab_size for token in params.stop_token_ids):
        raise InvalidRequestError(
            f"'stop_token_ids' must be from 0 to {info.vocab_size - 1}", param="stop_token_ids"
        )
    room = info.max_context - prompt_tokens
    if room < 1:
        raise ContextLengthError(
            f"this model's maximum context length is {info.max_context} tokens; the prompt has "
            f"{prompt_tokens}, which leaves none for an answer",
            param="prompt",
        )
    wanted = room if params.max_tokens is None else params.max_tokens
    if wanted > room:
        raise ContextLengthError(
            f"this model's maximum context length is {info.max_context} tokens; the prompt has "
            f"{prompt_tokens}, so that 'max_tokens' may be {room} at most, not {wanted}",
            param="max_tokens",
        )
    return wanted


def _seed(params: SamplingParams) -> int:
    """The seed as a number of 64 bits; one at random if there is none."""
    return secrets.randbits(64) if params.seed is None else params.seed % 2**64


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
        raise _wrong_type("grammar", "a Grammar, such as json_schema(...)", grammar)
    description = grammar.description()
    if len(description) > MAX_GRAMMAR_BYTES:
        raise InvalidGrammarError(
            f"the grammar's description has {len(description)} bytes; "
            f"at most {MAX_GRAMMAR_BYTES} are taken",
            param="grammar",
        )
    return description


def number_of(param: str, name: str | None) -> int:
    """A stable 64-bit number for a name; 0 for none."""
    if name is None:
        return 0
    if not isinstance(name, str):
        raise _wrong_type(param, "a string", name)
    encoded = name.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")
