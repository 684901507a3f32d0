"""From a caller's request to the Submit message: checked, tokenized, within the context.

::

    prompt, params, options ──► check ──► token ids ──► what fits the context ──► Submit
"""

import hashlib
import secrets
import time
from collections.abc import Sequence

from pyengine._core import Stage, Timeline
from pyengine.errors import ContextLengthError, InvalidRequestError
from pyengine.messages import Extension, RequestKey, Submit, encode_extensions
from pyengine.queues import EngineInfo
from pyengine.request.adapters import AdapterNames
from pyengine.request.arguments import packed, wrong_type
from pyengine.request.features.feature import Asked
from pyengine.request.features.registry import FEATURES
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams, pack_sampling
from pyengine.telemetry.preparation import preparing
from pyengine.tokenizer import Tokenizer


class RequestBuilder:
    """Makes requests for a running engine. Lives on the loop of its callers.

    Attributes:
        tokenizer: The model's tokenizer.
        timeline: Takes the spans of tokenizing.
        adapters: The adapters that there are, by name.
    """

    def __init__(
        self, tokenizer: Tokenizer, timeline: Timeline, adapters: AdapterNames | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.adapters = AdapterNames() if adapters is None else adapters
        self.timeline = timeline

    def tokens(self, text: str, info: EngineInfo, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a prompt.

        Raises:
            ContextLengthError: It is so long that it cannot fit the context.
        """
        with preparing(self.timeline, Stage.TOKENIZE):
            self.tokenizer.check_length(text, info.max_context)
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

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
        token_ids = packed("prompt", ids, info.vocab_size)
        if not token_ids:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        asked = Asked(params, len(token_ids), self.tokenizer, info, self.adapters)
        made = [feature.ask(asked, options) for feature in FEATURES]
        extensions = [extension for extension in made if extension is not None]
        now, timeout = time.monotonic_ns(), options.timeout
        return Submit(
            key=key,
            tokens=token_ids.tobytes(),
            prompt_length=len(token_ids),
            max_tokens=_answer_tokens(asked, extensions),
            min_tokens=params.min_tokens,
            sampling=pack_sampling(params, _seed(params)),
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
            extensions=encode_extensions(extensions),
        )


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


def _answer_tokens(asked: Asked, extensions: Sequence[Extension]) -> int:
    """Returns the most tokens that the request may generate; refuses one that cannot fit."""
    params, info, prompt_tokens = asked.params, asked.info, asked.prompt_length
    limits = (extension.ANSWER_TOKENS for extension in extensions)
    limit = next((limit for limit in limits if limit is not None), None)
    if limit is None and params.max_tokens == 0:
        limit = 0
    if limit is not None:
        if prompt_tokens > info.max_context:
            raise ContextLengthError(
                f"this model's maximum context length is {info.max_context} tokens; the prompt has "
                f"{prompt_tokens}",
                param="prompt",
            )
        return limit
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
