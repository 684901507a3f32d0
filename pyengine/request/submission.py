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
from typing import Any

import msgspec

from pyengine._core import Stage, Timeline
from pyengine.errors import ContextLengthError, InvalidRequestError
from pyengine.messages import RequestKey, Submit
from pyengine.queues import EngineInfo
from pyengine.request.options import RequestOptions, wrong_type
from pyengine.request.penalties import allowed_tokens, bad_words, dry_breakers, logit_bias
from pyengine.sampling import SamplingParams, pack_sampling
from pyengine.tokenizer import Tokenizer, longest_prediction


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
        raise wrong_type(param, "text or token ids", token_ids)
    try:
        packed = array("I", token_ids)
    except TypeError:
        raise wrong_type(param, "text or token ids", token_ids) from None
    except OverflowError:
        packed = array("I", [info.vocab_size])
    if packed and max(packed) >= info.vocab_size:
        raise InvalidRequestError(f"token ids must be from 0 to {info.vocab_size - 1}", param=param)
    return packed


def checked_params(params: SamplingParams | None, default: SamplingParams) -> SamplingParams:
    """``params`` validated, or ``default`` for None.

    Raises:
        InvalidRequestError: ``params`` is of another type, or a parameter is out of its range.
    """
    if params is None:
        return default
    if not isinstance(params, SamplingParams):
        raise wrong_type("params", "SamplingParams(...)", params)
    params.validate()
    return params


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
            raise wrong_type(f"{param}.{name}", "an object of arguments", given)
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


def number_of(param: str, name: str | None) -> int:
    """A stable 64-bit number for a name; 0 for none."""
    if name is None:
        return 0
    if not isinstance(name, str):
        raise wrong_type(param, "a string", name)
    encoded = name.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")
