"""The results of a request: updates as they come, the whole answer, counts and times.

What is made for every chunk of a stream is a Struct, which takes a fifth of a dataclass's time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import msgspec

from pyengine.logprobs import TokenLogprob
from pyengine.messages import FinishReason
from pyengine.telemetry.timing import Timing

TextFinish = Literal["stop", "length"]
"""Why a text ended that was not cut off by an error."""


class Cost(msgspec.Struct, frozen=True, gc=False):
    """What a request cost.

    Attributes:
        device_seconds: Its share of the device's time: of each step, that of its tokens among the
            step's, with what was sampled for it and rejected.
        cache_byte_seconds: Bytes of its tokens in the KV cache, by how long it held them; each
            request that shares a prefix holds all of it.
        steps: Steps that it took part in.
        cpu_us: Microseconds by stage. ``http_decode``, ``template`` and ``tokenize`` were its own,
            with waits for a thread. The others are its share of what the scheduler, the detokenizer
            and the frontends did during its steps, which all rows of a step have alike. On the CPU,
            ``launch`` and ``sample`` are the model's own time.
    """

    device_seconds: float
    cache_byte_seconds: float
    steps: int
    cpu_us: dict[str, float]

    def plus(self, other: "Cost") -> "Cost":
        """The sum of both."""
        stages = self.cpu_us | other.cpu_us
        return Cost(
            self.device_seconds + other.device_seconds,
            self.cache_byte_seconds + other.cache_byte_seconds,
            self.steps + other.steps,
            {each: self.cpu_us.get(each, 0) + other.cpu_us.get(each, 0) for each in stages},
        )


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts of a request.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Prompt tokens that came from the prefix cache.
        completion_tokens: Tokens generated.
        accepted_drafts: Generated tokens that were drafted, by any proposer, and verified.
        rejected_drafts: Tokens that were drafted and rejected.
        reasoning_tokens: Tokens of the reasoning before the answer, markers counted in where each
            is one token; else as many as the text of the reasoning has, and None before the end.
            None too where the model's format has no reasoning.
        cost: What the request cost, where it asks for that.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    reasoning_tokens: int | None = None
    cost: Cost | None = None


def total_cost(usages: Iterable[Usage]) -> Cost | None:
    """The cost of all; None where none is known."""
    costs = [usage.cost for usage in usages if usage.cost is not None]
    return reduce(Cost.plus, costs) if costs else None


class Update(msgspec.Struct, frozen=True, gc=False):
    """The part of an answer that came since the last update.

    Attributes:
        text: New text: whole characters, never a part of a stop string. Updates concatenate to the
            completion's text.
        token_ids: New tokens, including those whose text is still withheld.
        finish_reason: ``stop`` or ``length`` in the last update, else None.
        stop_string: The stop string that ended the request, if one did.
        stop_token: The stop token that ended the request, if one did.
        usage: Counts up to here.
        warnings: Keywords of the request's grammar that are not enforced, as the request
            allowed; in one update only.
        logprobs: The tokens whose text begins in this one, if log-probabilities are wanted.
    """

    text: str
    token_ids: list[int]
    finish_reason: TextFinish | None
    stop_string: str | None
    stop_token: int | None
    usage: Usage
    warnings: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer; the fields are those of :class:`Update`, over the whole request.

    Attributes:
        prompt_logprobs: If log-probabilities of the prompt are wanted, an entry for each of its
            tokens: the log-probability after the tokens before it. None for the first, and for
            those that were left out; an entry's place in the text means nothing.
        following_logprobs: The log-probabilities that tokens have behind the prompt, in the order
            in which the request names them, if it names some.
    """

    text: str
    token_ids: list[int]
    finish_reason: TextFinish
    stop_string: str | None
    stop_token: int | None
    usage: Usage
    warnings: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    following_logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of a request, or how it ended.

    Attributes:
        finish: Why it ended; None while it runs.
        usage: Counts up to here.
        timing: Its points in time up to here.
    """

    finish: FinishReason | None
    usage: Usage
    timing: Timing
