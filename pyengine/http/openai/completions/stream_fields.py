"""Fields that all chunks of a stream share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pyengine.chat.answer import ChatUpdate
from pyengine.completion import Update
from pyengine.http.openai.logprobs import by_token_ids
from pyengine.http.openai.schema.common import GenerationRequest
from pyengine.logprobs import TokenLogprob


@dataclass(frozen=True)
class TokenIds:
    """What the chunks of a stream tell of tokens.

    Attributes:
        prompts: The ids of the prompts, if all token ids are wanted.
        names: Log-probabilities call tokens by their ids.
        scores: The log-probabilities of a choice's prompt, if they are wanted: known once its first
            update is there.
        echoed: The ``logprobs`` of a choice's echoed prompt, likewise.
    """

    prompts: Sequence[Sequence[int]] | None = None
    names: bool = False
    scores: Callable[[int], Any] | None = None
    echoed: Callable[[int], dict[str, Any]] | None = None

    @classmethod
    def wanted(
        cls,
        request: GenerationRequest,
        prompts: Sequence[Sequence[int]],
        scores: Callable[[int], Any] | None = None,
        echoed: Callable[[int], dict[str, Any]] | None = None,
    ) -> Self:
        """What ``request`` wants of them."""
        names = bool(request.return_tokens_as_token_ids)
        return cls(prompts if request.return_token_ids else None, names, scores, echoed)

    def logprobs(self, update: Update | ChatUpdate) -> Sequence[TokenLogprob] | None:
        """The log-probabilities of an update."""
        return by_token_ids(update.logprobs) if self.names else update.logprobs


@dataclass(frozen=True)
class StreamFields:
    """What every chunk of a stream begins with, and which fields its chunks have beside.

    Attributes:
        answer_id: The ``id`` of all of them.
        created: When the answers were begun, in seconds since 1970.
        model: The name that the request gave the model.
        n: Answers to each prompt.
        warnings: Stand in the first chunk, with those of the first update; none is repeated.
        usage: Whether a chunk of usage comes last.
        usage_so_far: Whether every chunk says the usage until then.
        tokens: What they tell of tokens.
        pads: Whether chunks are padded.
    """

    answer_id: str
    created: int
    model: str
    n: int = 1
    warnings: Sequence[str] = ()
    usage: bool = False
    usage_so_far: bool = False
    tokens: TokenIds = TokenIds()
    pads: bool = False

    @classmethod
    def wanted(
        cls,
        request: GenerationRequest,
        answer_id: str,
        created: int,
        model: str,
        warnings: Iterable[str],
        tokens: TokenIds,
    ) -> Self:
        """What ``request`` wants of them."""
        options = request.stream_options
        usage = options is not None and bool(options.include_usage)
        so_far = options is not None and bool(options.continuous_usage_stats)
        pads = options is not None and bool(options.include_obfuscation)
        return cls(
            answer_id, created, model, request.n or 1, tuple(warnings), usage, so_far, tokens, pads
        )
