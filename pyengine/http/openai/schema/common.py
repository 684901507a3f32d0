"""Fields that chat and text completions share: sampling, streaming, refusals by name."""

from collections.abc import Sequence

import msgspec

from pyengine.completion import Cost, Usage, total_cost
from pyengine.errors import InvalidRequestError
from pyengine.http.limits import Limits
from pyengine.http.openai.schema.structured import StructuredFields


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``stream_options``: what a stream tells besides; whether its parts are padded, too."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class ReasoningParam(msgspec.Struct, forbid_unknown_fields=True):
    """``reasoning``: the effort, for a template that reads one, and most tokens of it."""

    effort: str | None = None
    max_tokens: int | None = None


class GenerationRequest(StructuredFields, kw_only=True, forbid_unknown_fields=True):
    """Fields of both kinds of completion.

    Attributes:
        n: Answers to each prompt. With a ``seed``, choice i has the tokens that ``seed + i`` gives,
            modulo 2**64.
        truncate_prompt_tokens: Keep this many of the prompt's last tokens; -1 keeps what fits.
        prompt_logprobs: Tell log-probabilities of the prompt's tokens, and this many others each.
        return_token_ids: Add the ids of the prompt's and the answer's tokens.
        return_tokens_as_token_ids: Name tokens of log-probabilities token_id:N.
    """

    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


def check_common(request: GenerationRequest, limits: Limits) -> None:
    """The rules between fields that both kinds of completion share, and their limits.

    Raises:
        InvalidRequestError: Naming the field.
    """
    if request.n is not None and not 1 <= request.n <= limits.max_choices:
        raise InvalidRequestError(
            f"'n' must be from 1 to {limits.max_choices}, not {request.n}.", param="n"
        )
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError(
            "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )


def truncated(
    token_ids: list[int], request: GenerationRequest, max_tokens: int | None, max_context: int
) -> list[int]:
    """The last tokens of a prompt, as many as ``truncate_prompt_tokens`` says.

    Raises:
        InvalidRequestError: It is neither -1 nor positive.
    """
    room = max(1, max_context - (max_tokens or 1))
    return last_tokens(token_ids, request.truncate_prompt_tokens, room)


def last_tokens(token_ids: list[int], most: int | None, room: int) -> list[int]:
    """The last ``most`` tokens of a prompt: None is all of them, -1 as many as there is room for.

    Raises:
        InvalidRequestError: ``most`` is neither -1 nor positive.
    """
    if most is None:
        return token_ids
    if most == -1:
        most = room
    if most < 1:
        raise InvalidRequestError(
            f"'truncate_prompt_tokens' must be -1 or at least 1, not {most}.",
            param="truncate_prompt_tokens",
        )
    return token_ids[-most:]


_MOST_KEYS, _LONGEST_KEY, _LONGEST_VALUE = 16, 64, 512


def check_metadata(metadata: dict[str, str] | None) -> None:
    """Refuse metadata beyond OpenAI's bounds.

    Raises:
        InvalidRequestError: Naming ``metadata``.
    """
    given = metadata or {}
    if len(given) > _MOST_KEYS or any(
        len(key) > _LONGEST_KEY or len(value) > _LONGEST_VALUE for key, value in given.items()
    ):
        raise InvalidRequestError(
            f"'metadata' may have {_MOST_KEYS} keys of at most {_LONGEST_KEY} characters, with "
            f"values of at most {_LONGEST_VALUE}.",
            param="metadata",
        )


class PromptTokensDetails(msgspec.Struct, gc=False):
    """How many prompt tokens came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, gc=False, omit_defaults=True):
    """Counts of the tokens of the answers, by kind.

    Attributes:
        accepted_prediction_tokens: Tokens that were drafted, by the client's prediction or the
            engine's own proposers, and accepted.
        rejected_prediction_tokens: Draft tokens that were rejected; they are not among the
            completion tokens.
        reasoning_tokens: Tokens of the reasoning, where they can be counted: the model's format has
            one token for each of its markers.
    """

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int | msgspec.UnsetType = msgspec.UNSET


class UsageObject(msgspec.Struct, gc=False):
    """``usage`` of a response."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    cost: Cost | msgspec.UnsetType = msgspec.UNSET


def usage_object(usages: Sequence[Usage], n: int = 1) -> UsageObject:
    """The sum of ``usages``, one a choice; of ``n`` choices of a prompt that is counted once."""
    prompt = sum(usage.prompt_tokens for usage in usages[::n])
    completion = sum(usage.completion_tokens for usage in usages)
    details = CompletionTokensDetails(
        sum(usage.accepted_drafts for usage in usages),
        sum(usage.rejected_drafts for usage in usages),
    )
    reasoning = [u.reasoning_tokens for u in usages if u.reasoning_tokens is not None]
    if reasoning:
        details.reasoning_tokens = sum(reasoning)
    return UsageObject(
        prompt,
        completion,
        prompt + completion,
        PromptTokensDetails(sum(usage.cached_tokens for usage in usages[::n])),
        details,
        total_cost(usages) or msgspec.UNSET,
    )
