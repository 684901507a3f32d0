"""Responses as OpenAI writes them: whole, and as a stream of events.

::

    response.created, response.in_progress
      output_item.added ── [content_part.added ── deltas ── done, content_part.done] ──
      output_item.done, for reasoning, message and each function call in their order
    response.completed, or response.incomplete

In the background, response.queued stands behind response.created, and the last event of a response
that is cancelled is response.incomplete with that status.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from pyengine.chat.answer import ChatAnswer, ChatUpdate, FinishReason
from pyengine.completion import Usage
from pyengine.errors import PyengineError, RequestAbortedError
from pyengine.http.answering import Answers, OneAnswerWriter
from pyengine.http.openai.logprobs import event_logprobs, response_logprobs
from pyengine.http.openai.responses.items import (
    CALL_EVENTS,
    TEXT_EVENTS,
    Logprobs,
    OpenItem,
    Writing,
    message,
)
from pyengine.http.openai.schema.response_object import (
    InputTokensDetails,
    OutputItem,
    OutputTokensDetails,
    ResponseObject,
    ResponseUsage,
)
from pyengine.http.streams.event_stream import EVENTS, padding

_encode = msgspec.json.Encoder().encode


def _whole_response(
    response: ResponseObject, answer: ChatAnswer, writing: Writing
) -> ResponseObject:
    """The response with a whole answer in it."""
    new_id = writing.new_id
    done = _status(answer.finish_reason)
    output: list[OutputItem] = []
    if answer.reasoning:
        output.append(writing.reasoning(new_id("rs_"), answer.reasoning, done))
    if answer.text or (not output and not answer.tool_calls):
        logprobs = response_logprobs(answer.text_logprobs)
        output.append(message(new_id("msg_"), answer.text, logprobs, done))
    output += [writing.call(call, done) for call in answer.tool_calls]
    return _ended(response, output, answer.finish_reason, answer.usage)


def _ended(
    response: ResponseObject,
    output: list[OutputItem],
    finish: FinishReason | None,
    usage: Usage,
) -> ResponseObject:
    response = msgspec.structs.replace(
        response, status=_status(finish), output=output, usage=usage_object(usage)
    )
    if finish == "length":
        response.incomplete_details = {"reason": "max_output_tokens"}
    else:
        response.completed_at = int(time.time())
    return response


def _status(finish: FinishReason | None) -> str:
    return "incomplete" if finish == "length" else "completed"


def usage_object(usage: Usage) -> ResponseUsage:
    """``usage`` of a response."""
    return ResponseUsage(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        InputTokensDetails(usage.cached_tokens, usage.prompt_tokens - usage.cached_tokens),
        OutputTokensDetails(usage.reasoning_tokens or 0),
    )


class ResponseWriter(OneAnswerWriter):
    """Writes one response; :class:`pyengine.http.answering.Writer` of its API.

    Attributes:
        response: The response as of the last event.
    """

    form = EVENTS

    def __init__(
        self,
        response: ResponseObject,
        writing: Writing,
        save: Callable[[ResponseObject], Awaitable[None]],
    ) -> None:
        """``response`` has no output yet; ``save`` stores it with its output."""
        self.response = response
        self._save = save
        self._writing = writing
        self._new_id = writing.new_id
        self._number = 0
        self._output: list[OutputItem] = []
        self._open: OpenItem | None = None
        self._finish: FinishReason | None = None

    async def whole(self, answers: Answers) -> bytes:
        """The response with its answer in it."""
        (generation,) = answers
        answer: ChatAnswer = await generation
        self.response.warn(answer.warnings)
        response = _whole_response(self.response, answer, self._writing)
        await self._save(response)
        return _encode(response)

    async def ended(self, answers: Answers) -> None:
        """Stores the response as its events have told it."""
        await self._save(self.response)

    def queued(self) -> bytes:
        """The response before it begins."""
        return self._whole("response.created") + self._whole("response.queued")

    def first(self, index: int, update: ChatUpdate) -> bytes:
        """The response as it begins."""
        self.response.warn(update.warnings)
        created = b"" if self._number else self._whole("response.created")
        self.response.status = "in_progress"
        return created + self._whole("response.in_progress")

    def update(self, index: int, update: ChatUpdate) -> bytes:
        """The events of an update, item by item."""
        self._finish = update.finish_reason
        return b"".join(self._added(update))

    def last(self, usages: list[Usage]) -> bytes:
        """The end of the open item, and the whole response."""
        data = b""
        if self._open is None and not self._output:
            data = self._begin(OpenItem("message", self._new_id("msg_")))
        data += self._close()
        self.response = _ended(self.response, self._output, self._finish, usages[0])
        return data + self._whole(f"response.{self.response.status}")

    def error(self, error: PyengineError) -> bytes:
        """The error, and the response that failed by it, or was cancelled."""
        if self.response.background and isinstance(error, RequestAbortedError):
            self.response = msgspec.structs.replace(
                self.response, status="cancelled", output=self._output
            )
            return self._whole("response.incomplete")
        said = {"code": error.code, "message": error.message, "param": error.param}
        data = self._event("error", **said)
        failure = {"code": "server_error", "message": error.message}
        self.response = msgspec.structs.replace(
            self.response, status="failed", error=failure, output=self._output
        )
        return data + self._whole("response.failed")

    def _added(self, update: ChatUpdate) -> Iterator[bytes]:
        if update.reasoning:
            yield from self._text("reasoning", "rs_", update.reasoning)
        speaks = self._open is not None and self._open.kind == "message"
        if update.text or (update.text_logprobs and speaks):  # tokens may come after their text
            logprobs = response_logprobs(update.text_logprobs)
            yield from self._text("message", "msg_", update.text, logprobs)
        for call in update.tool_calls:
            if call.id is not None and call.name is not None:
                yield self._close()
                yield self._begin(self._writing.opened(call.id, call.name))
            if call.arguments:
                yield self._delta_of_call(call.arguments)

    def _text(
        self, kind: str, prefix: str, text: str, logprobs: Logprobs | None = None
    ) -> Iterator[bytes]:
        if self._open is None or self._open.kind != kind:
            yield self._close()
            yield self._begin(OpenItem(kind, self._new_id(prefix)))
        yield self._delta(f"{TEXT_EVENTS[kind]}.delta", text, logprobs)

    def _begin(self, opened: OpenItem) -> bytes:
        self._open = opened
        data = self._event(
            "response.output_item.added",
            output_index=len(self._output),
            item=opened.item("in_progress", self._writing),
        )
        if opened.kind not in TEXT_EVENTS:
            return data
        return data + self._inside("response.content_part.added", part=opened.part())

    def _delta_of_call(self, arguments: str) -> bytes:
        assert self._open is not None
        text = self._open.add(arguments)
        if not text or self._open.kind not in CALL_EVENTS:
            return b""
        return self._padded(f"{CALL_EVENTS[self._open.kind][0]}.delta", text)

    def _delta(self, event: str, text: str, logprobs: Logprobs | None = None) -> bytes:
        assert self._open is not None
        self._open.add(text)
        if logprobs is None:
            return self._padded(event, text)
        self._open.logprobs += logprobs
        return self._padded(event, text, logprobs=event_logprobs(logprobs))

    def _padded(self, event: str, text: str, **fields: Any) -> bytes:
        """A delta of the open item, with padding where that is wanted."""
        if self._writing.pads:
            fields["obfuscation"] = padding(len(text.encode()))
        return self._inside(event, delta=text, **fields)

    def _close(self) -> bytes:
        """The item that is open is done."""
        opened = self._open
        if opened is None:
            return b""
        text = "".join(opened.pieces)
        data = b""
        fields: dict[str, Any]
        if opened.kind in CALL_EVENTS:
            event, whole = CALL_EVENTS[opened.kind]
            fields = {whole: text} if opened.custom else {"name": opened.name, whole: text}
            data = self._inside(f"{event}.done", **fields)
        elif opened.kind in TEXT_EVENTS:
            fields = {"text": text}
            if opened.kind == "message":
                fields["logprobs"] = event_logprobs(opened.logprobs)
            data = self._inside(f"{TEXT_EVENTS[opened.kind]}.done", **fields)
            data += self._inside("response.content_part.done", part=opened.part())
        item = opened.item(_status(self._finish), self._writing)
        data += self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output = [*self._output, item]
        self._open = None
        return data

    def _inside(self, event: str, **fields: Any) -> bytes:
        """An event of the open item."""
        assert self._open is not None
        where: dict[str, Any] = {"item_id": self._open.id, "output_index": len(self._output)}
        if self._open.kind in TEXT_EVENTS:
            where["content_index"] = 0
        return self._event(event, **where, **fields)

    def _whole(self, event: str) -> bytes:
        return self._event(event, response=self.response)

    def _event(self, event: str, **fields: Any) -> bytes:
        data = {"type": event, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (event.encode(), _encode(data))
