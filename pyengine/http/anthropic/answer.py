"""Answers as Anthropic writes them: whole, and as a stream of events.

::

    message_start
      content_block_start ── content_block_delta ... ── content_block_stop
      for thinking, text and each call, in their order
    message_delta (why it stopped, usage), message_stop
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from pyengine.chat.answer import ChatAnswer, ChatUpdate, read_arguments
from pyengine.completion import Usage
from pyengine.errors import PyengineError
from pyengine.http.answering import Answers, OneAnswerWriter
from pyengine.http.anthropic.schema import MessageAnswer, MessageUsage
from pyengine.http.packed_reasoning import packed
from pyengine.http.streams.event_stream import EVENTS

_encode = msgspec.json.Encoder().encode
# Anthropic's types of errors, by status; another status is an api_error.
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: PyengineError) -> bytes:
    """``{"type": "error", "error": {...}}``; the field at fault is beside Anthropic's keys."""
    kind = _ERRORS.get(error.status, "api_error")
    said = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
    return _encode({"type": "error", "error": said})


def usage_object(usage: Usage) -> MessageUsage:
    """The counts of an answer."""
    fresh = usage.prompt_tokens - usage.cached_tokens
    return MessageUsage(fresh, usage.completion_tokens, usage.cached_tokens)


def stop_reason(last: ChatAnswer | ChatUpdate) -> str:
    """Why an answer ended."""
    if last.finish_reason == "tool_calls":
        return "tool_use"
    if last.finish_reason == "length":
        return "max_tokens"
    return "end_turn" if last.stop_string is None else "stop_sequence"


def content(answer: ChatAnswer, *, shows: bool = True) -> list[dict[str, Any]]:
    """The blocks of a whole answer; ``shows``: with the text of its thinking."""
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        thought, signature = (answer.reasoning, "") if shows else ("", packed(answer.reasoning))
        blocks.append({"type": "thinking", "thinking": thought, "signature": signature})
    if answer.text or (not blocks and not answer.tool_calls):
        blocks.append({"type": "text", "text": answer.text})
    blocks += [
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": read_arguments(call.arguments),
        }
        for call in answer.tool_calls
    ]
    return blocks


class MessageWriter(OneAnswerWriter):
    """Writes one answer; :class:`pyengine.http.answering.Writer` of its API."""

    form = EVENTS

    def __init__(
        self,
        answer_id: str,
        model: str,
        warnings: Sequence[str],
        edits: Sequence[dict[str, Any]] | None,
        *,
        shows: bool,
    ) -> None:
        """Write an answer.

        Args:
            answer_id: Its id.
            model: The name that the request gave the model.
            warnings: The warnings of the request, which stand in the first event.
            edits: What was left out of the conversation, where the request asks for that.
            shows: Whether the thinking's text is shown; if not, its signature holds it.
        """
        self._id, self._model, self._warnings = answer_id, model, list(warnings)
        self._edits = None if edits is None else {"applied_edits": list(edits)}
        self._shows = shows
        self._thought: list[str] = []  # that the signature will hold
        self._open: str | None = None  # the kind of the block that is being written
        self._blocks = 0  # that were begun
        self._last: ChatUpdate | None = None

    async def whole(self, answers: Answers) -> bytes:
        """The message with its answer in it."""
        (made,) = answers
        whole: ChatAnswer = await made
        blocks = content(whole, shows=self._shows)
        message = self._message(whole, blocks, stop_reason(whole), whole.stop_string)
        if self._edits is not None:
            message.context_management = self._edits
        return _encode(message)

    def first(self, index: int, update: ChatUpdate) -> bytes:
        """The message as it begins."""
        return _event("message_start", message=self._message(update, [], None, None))

    def _message(
        self,
        of: ChatAnswer | ChatUpdate,
        blocks: list[dict[str, Any]],
        reason: str | None,
        stop_string: str | None,
    ) -> MessageAnswer:
        message = MessageAnswer(
            id=self._id,
            model=self._model,
            content=blocks,
            stop_reason=reason,
            stop_sequence=stop_string,
            usage=usage_object(of.usage),
        )
        if warnings := list(dict.fromkeys((*self._warnings, *of.warnings))):
            message.warnings = warnings
        return message

    def update(self, index: int, update: ChatUpdate) -> bytes:
        """The events of an update, block by block."""
        self._last = update
        return b"".join(self._added(update))

    def last(self, usages: list[Usage]) -> bytes:
        """The end of the open block, and of the message."""
        assert self._last is not None
        data = b""
        if not self._blocks:
            data = self._begin("text", {"type": "text", "text": ""})
        data += self._close()
        delta = {
            "stop_reason": stop_reason(self._last),
            "stop_sequence": self._last.stop_string,
        }
        more = {} if self._edits is None else {"context_management": self._edits}
        data += _event("message_delta", delta=delta, usage=usage_object(usages[0]), **more)
        return data + _event("message_stop")

    def error(self, error: PyengineError) -> bytes:
        """The end of a stream that failed."""
        return b"event: error\ndata: %b\n\n" % error_body(error)

    def _added(self, update: ChatUpdate) -> Iterator[bytes]:
        if update.reasoning:
            if self._open != "thinking":
                yield self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            if self._shows:
                yield self._delta({"type": "thinking_delta", "thinking": update.reasoning})
            else:
                self._thought.append(update.reasoning)
        if update.text:
            if self._open != "text":
                yield self._begin("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": update.text})
        for call in update.tool_calls:
            if call.id is not None and call.name is not None:
                block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
                yield self._begin("tool_use", block)
            if call.arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def _begin(self, kind: str, block: dict[str, Any]) -> bytes:
        data = self._close()
        self._open = kind
        self._blocks += 1
        return data + _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        data = b""
        if self._thought:
            signature = packed("".join(self._thought))
            data = self._delta({"type": "signature_delta", "signature": signature})
            self._thought.clear()
        return data + _event("content_block_stop", index=self._blocks - 1)


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))
