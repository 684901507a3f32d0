"""The tokens of a batch: the sum of what its answers say of themselves."""

from typing import Any

import msgspec

from pyengine.http.batches.lines import AnswerLine
from pyengine.http.openai.schema.response_object import (
    InputTokensDetails,
    OutputTokensDetails,
    ResponseUsage,
)


class _Body(msgspec.Struct):
    usage: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Body).decode


def add_usage(total: ResponseUsage | None, line: AnswerLine) -> ResponseUsage | None:
    """The tokens of a batch with those of one more answer; one that failed has none."""
    if not line.good or line.response is None:
        return total
    usage = _decode(line.response.body).usage
    if usage is None:
        return total

    def of(name: str, inner: str = "") -> int:
        """A count, as completions, responses and Anthropic's messages spell it."""
        found = (usage.get(name) or {}).get(inner) if inner else usage.get(name)
        return int(found or 0)

    # Anthropic's input leaves out what came from the cache.
    cached = of("cache_read_input_tokens")
    given = of("prompt_tokens") + of("input_tokens") + cached
    for details in ("prompt_tokens_details", "input_tokens_details"):
        cached += of(details, "cached_tokens")
    made = of("completion_tokens") + of("output_tokens")
    thought = of("completion_tokens_details", "reasoning_tokens")
    thought += of("output_tokens_details", "reasoning_tokens")
    if total is not None:
        given, made = given + total.input_tokens, made + total.output_tokens
        cached += total.input_tokens_details.cached_tokens
        thought += total.output_tokens_details.reasoning_tokens
    return ResponseUsage(
        given,
        made,
        given + made,
        InputTokensDetails(cached, given - cached),
        OutputTokensDetails(thought),
    )
