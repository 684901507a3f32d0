r"""Log-probabilities as OpenAI's endpoints write them, and how they are asked for.

In a chat they are those of all that the model wrote, in order: where its format marks reasoning or
calls, the tokens of these and of the markers are among them. In a response they are those of a
message's text, and its events leave out the bytes. In a text completion, tokens that are
no whole character are written ``bytes:\xe2\x82``, and ``text_offset`` counts from the beginning
of the answer. Minus infinity, which JSON does not have, is -9999.0.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.http.openai.schema.chat import ChatRequest
from pyengine.http.openai.schema.responses import ResponsesRequest
from pyengine.logprobs import TokenLogprob, TopLogprob
from pyengine.sampling import MAX_LOGPROBS

T = TypeVar("T", bound=TopLogprob)

NEVER = -9999.0
MOST_IN_COMPLETIONS = 5
OF_TEXT = "message.output_text.logprobs"
OF_REASONING = "reasoning.encrypted_content"
# What else OpenAI's answers may include, of tools that it runs itself.
_NOT_HERE = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)


class _Likely(msgspec.Struct, gc=False):
    """A token that might have come, as a chat has it."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class _Came(_Likely, gc=False):
    """A token that came."""

    top_logprobs: tuple[_Likely, ...]


def wanted_in_chat(request: ChatRequest) -> int | None:
    """How many likely tokens a conversation's request wants to see; None is no log-probabilities.

    Raises:
        InvalidRequestError: Its fields do not go together, or are out of range.
    """
    top = _top(request.top_logprobs)
    if not request.logprobs:
        if top:
            raise InvalidRequestError(
                "'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs"
            )
        return None
    if request.include_reasoning is False:
        raise InvalidRequestError(
            "'logprobs' include the tokens of the reasoning, which 'include_reasoning' leaves "
            "out; give one.",
            param="include_reasoning",
        )
    return top


def wanted_in_response(request: ResponsesRequest, warnings: dict[str, None]) -> int | None:
    """How many likely tokens a response is to show; None is no log-probabilities.

    ``warnings`` takes what is told of other things that are to be included.

    Raises:
        InvalidRequestError: As of :func:`wanted_in_chat`; or something else is to be included that
            is not known.
    """
    top, include = _top(request.top_logprobs), request.include or []
    for index, wanted in enumerate(include):
        if wanted in _NOT_HERE:
            warnings[f"'include': answers have no {wanted}."] = None
        elif wanted not in (OF_TEXT, OF_REASONING):
            at = f"include[{index}]"
            known = ", ".join((OF_TEXT, OF_REASONING, *_NOT_HERE))
            raise InvalidRequestError(f"'{at}' must be one of {known}.", param=at)
    if OF_TEXT in include:
        return top
    if top:
        raise InvalidRequestError(
            f"'top_logprobs' is only allowed when 'include' has {OF_TEXT}.", param="top_logprobs"
        )
    return None


def _top(given: int | None) -> int:
    """``top_logprobs``, within its range."""
    if given is not None and not 0 <= given <= MAX_LOGPROBS:
        raise InvalidRequestError(
            f"'top_logprobs' must be from 0 to {MAX_LOGPROBS}, not {given}.", param="top_logprobs"
        )
    return given or 0


def check_in_completions(logprobs: int | None) -> None:
    """Refuse a number of likely tokens that a text completion cannot have.

    Raises:
        InvalidRequestError: Naming the field.
    """
    if logprobs is not None and not 0 <= logprobs <= MOST_IN_COMPLETIONS:
        raise InvalidRequestError(
            f"'logprobs' must be from 0 to {MOST_IN_COMPLETIONS}, not {logprobs}.", param="logprobs"
        )


def by_token_ids(entries: Iterable[TokenLogprob] | None) -> list[TokenLogprob] | None:
    """``entries`` whose tokens are called ``token_id:N``, as vLLM calls them."""
    if entries is None:
        return None
    return [
        msgspec.structs.replace(_numbered(entry), top=tuple(map(_numbered, entry.top)))
        for entry in entries
    ]


def _numbered(entry: T) -> T:
    name = f"token_id:{entry.token_id}"
    return msgspec.structs.replace(entry, token=name, bytes=name.encode())


def chat_logprobs(entries: Iterable[TokenLogprob] | None) -> dict[str, Any] | None:
    """``logprobs`` of a choice of a chat completion, or of a chunk of it."""
    if entries is None:
        return None
    # Cached: the same tokens recur, up to 21 for each token of the answer.
    known: dict[bytes, tuple[int, ...] | None] = {}
    content = [
        _Came(
            *_chat_token(entry, known),
            tuple(_Likely(*_chat_token(top, known)) for top in entry.top),
        )
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def response_logprobs(entries: Iterable[TokenLogprob] | None) -> list[dict[str, Any]]:
    """``logprobs`` of a part of a response's message."""
    return [
        {**_with_bytes(entry), "top_logprobs": [_with_bytes(top) for top in entry.top]}
        for entry in entries or ()
    ]


def _with_bytes(entry: TopLogprob) -> dict[str, Any]:
    return {
        "token": entry.token,
        "bytes": list(entry.bytes),
        "logprob": _finite(entry.logprob),
    }


def event_logprobs(logprobs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The log-probabilities of :func:`response_logprobs` in the form of a response's events."""
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [
                {"token": top["token"], "logprob": top["logprob"]} for top in entry["top_logprobs"]
            ],
        }
        for entry in logprobs
    ]


def completion_logprobs(entries: Iterable[TokenLogprob] | None) -> dict[str, Any] | None:
    """``logprobs`` of a choice of a text completion, or of a chunk of it."""
    if entries is None:
        return None
    entries = list(entries)
    return {
        "text_offset": [entry.text_offset for entry in entries],
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "tokens": [_spelled(entry) for entry in entries],
        # The chosen token is included, whether it is one of the most likely or not.
        "top_logprobs": [
            {_spelled(top): _finite(top.logprob) for top in (*entry.top, entry)}
            for entry in entries
        ],
    }


def _chat_token(
    entry: TopLogprob, known: dict[bytes, tuple[int, ...] | None]
) -> tuple[str, float, tuple[int, ...] | None]:
    spelling = entry.bytes
    if spelling not in known:
        known[spelling] = tuple(spelling) or None
    return entry.token, _finite(entry.logprob), known[spelling]


def _spelled(entry: TopLogprob) -> str:
    try:
        return entry.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.bytes)


def _finite(logprob: float) -> float:
    return max(logprob, NEVER)
