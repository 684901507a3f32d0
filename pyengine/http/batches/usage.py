"""The tokens of a batch: the sum of what its answers say of themselves."""

import msgspec

from pyengine.http.batches.lines import AnswerLine
from pyengine.http.openai.schema.response_object import (
    InputTokensDetails,
    OutputTokensDetails,
    ResponseUsage,
)


class _Cached(msgspec.Struct):
    cached_tokens: int = 0


class _Thought(msgspec.Struct):
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    """``usage`` as completions, responses and Anthropic's messages spell it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Thought | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Thought | None = None
    cache_read_input_tokens: int = 0


class _Body(msgspec.Struct):
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Body).decode


def add_usage(total: ResponseUsage | None, line: AnswerLine) -> ResponseUsage | None:
    """The tokens of a batch with those of one more answer; one that failed has none."""
    if not line.good or line.response is None:
        return total
    usage = _decode(line.response.body).usage
    if usage is None:
        return total
    # Anthropic's input leaves out what came from the cache.
    cached = usage.cache_read_input_tokens
    given = usage.prompt_tokens + usage.input_tokens + cached
    for details in (usage.prompt_tokens_details, usage.input_tokens_details):
        cached += 0 if details is None else details.cached_tokens
    made = usage.completion_tokens + usage.output_tokens
    thought = sum(
        details.reasoning_tokens
        for details in (usage.completion_tokens_details, usage.output_tokens_details)
        if details is not None
    )
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
