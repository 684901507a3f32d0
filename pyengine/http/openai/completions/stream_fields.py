"""What all chunks of a stream share."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyengine.chat.answer import ChatUpdate
from pyengine.completion import Update
from pyengine.http.openai.logprobs import by_token_ids
from pyengine.http.openai.schema.common import GenerationRequest, StreamOptions
from pyengine.logprobs import TokenLogprob


class StreamFields:
    """What every chunk of a stream begins with, and which fields its chunks have beside.

    Attributes:
        head: The fields that chunks begin with, but for their ``object``.
        n: Answers to each prompt.
        warnings: Stand in the first chunk, with those of the first update; none is repeated.
        usage: Whether a chunk of usage comes last.
        usage_so_far: Whether every chunk says the usage until then.
        pads: Whether chunks are padded.
        prompts: The ids of the prompts, if all token ids are wanted.
        scores: The log-probabilities of a choice's prompt, if they are wanted: known once its first
            update is there.
        echoed: The ``logprobs`` of a choice's echoed prompt, likewise.
    """

    def __init__(
        self,
        request: GenerationRequest,
        head: dict[str, Any],
        warnings: Iterable[str],
        prompts: Sequence[Sequence[int]],
        scores: Callable[[int], Any] | None = None,
        echoed: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        """What ``request`` wants of them."""
        options = request.stream_options or StreamOptions()
        self.head, self.n, self.warnings = head, request.n or 1, tuple(warnings)
        self.usage = bool(options.include_usage)
        self.usage_so_far = bool(options.continuous_usage_stats)
        self.pads = bool(options.include_obfuscation)
        self.prompts = prompts if request.return_token_ids else None
        self.scores, self.echoed = scores, echoed
        self._names = bool(request.return_tokens_as_token_ids)

    def logprobs(self, update: Update | ChatUpdate) -> Sequence[TokenLogprob] | None:
        """The log-probabilities of an update."""
        return by_token_ids(update.logprobs) if self._names else update.logprobs
