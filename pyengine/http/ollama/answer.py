"""Answers as Ollama writes them: an object, or one a line as the answer comes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from pyengine.chat.answer import ChatAnswer, ChatUpdate, ToolCallDelta, read_arguments
from pyengine.completion import Usage
from pyengine.errors import PyengineError
from pyengine.http.answering import Answers, OneAnswerWriter
from pyengine.http.ollama.schema import (
    OllamaAnswer,
    OllamaCall,
    OllamaFunction,
    OllamaMessage,
)
from pyengine.http.streams.event_stream import LINES
from pyengine.request.generation import Generation
from pyengine.telemetry.timing import Timing

_encode = msgspec.json.Encoder().encode


def error_body(error: PyengineError) -> bytes:
    """``{"error": message}``."""
    return _encode({"error": error.message})


class OllamaWriter(OneAnswerWriter):
    """Writes one answer, whole or line by line; :class:`pyengine.http.answering.Writer`."""

    form = LINES

    def __init__(
        self, model: str, generation: Generation, warnings: Sequence[str], *, chat: bool
    ) -> None:
        """``chat``: whether the text is a message, or a response."""
        self._model, self._generation, self._chat = model, generation, chat
        self._warnings = list(warnings)
        self._calls: list[tuple[str, str, list[str]]] = []
        self._finish: str | None = None

    def first(self, index: int, update: ChatUpdate) -> bytes:
        """Nothing: the first line is that of the first text."""
        return b""

    def update(self, index: int, update: ChatUpdate) -> bytes:
        """A line with the new text; calls come whole, once all of them are there."""
        self._warnings = list(dict.fromkeys((*self._warnings, *update.warnings)))
        self._finish = update.finish_reason
        for call in update.tool_calls:
            self._add(call)
        if not update.text and not update.reasoning:
            return b""
        return self._line(self._made(update.text, update.reasoning, (), done=False))

    def last(self, usages: list[Usage]) -> bytes:
        """The calls, and the line that has the counts."""
        data = b""
        if self._calls:
            calls = [_call(*call[:2], "".join(call[2])) for call in self._calls]
            data = self._line(self._made("", "", calls, done=False))
        return data + self._line(self._ended(self._made("", "", (), done=True), usages[0]))

    def error(self, error: PyengineError) -> bytes:
        """The line that ends a stream which failed."""
        return error_body(error) + b"\n"

    async def whole(self, answers: Answers) -> bytes:
        """The answer as one object."""
        (generation,) = answers
        answer: ChatAnswer = await generation
        self._finish = answer.finish_reason
        self._warnings = list(dict.fromkeys((*self._warnings, *answer.warnings)))
        calls = [_call(call.id, call.name, call.arguments) for call in answer.tool_calls]
        made = self._made(answer.text, answer.reasoning, calls, done=True)
        return _written(self._ended(made, answer.usage))

    def _add(self, call: ToolCallDelta) -> None:
        if call.id is not None and call.name is not None:
            self._calls.append((call.id, call.name, []))
        self._calls[call.index][2].append(call.arguments)

    def _made(
        self, text: str, thinking: str, calls: Sequence[OllamaCall], *, done: bool
    ) -> OllamaAnswer:
        made = OllamaAnswer(model=self._model, created_at=_now(), done=done)
        if self._chat:
            made.message = OllamaMessage("assistant", text, thinking or None, list(calls) or None)
        else:
            made.response, made.thinking = text, thinking or None
        return made

    def _ended(self, made: OllamaAnswer, usage: Usage) -> OllamaAnswer:
        made.done_reason = "length" if self._finish == "length" else "stop"
        made.prompt_eval_count, made.eval_count = usage.prompt_tokens, usage.completion_tokens
        made.total_duration, made.prompt_eval_duration, made.eval_duration = _durations(
            self._generation.outcome.timing
        )
        made.load_duration = 0
        if self._warnings:
            made.warnings = self._warnings
        return made

    def _line(self, made: OllamaAnswer) -> bytes:
        return _written(made) + b"\n"


def loaded(model: str, warnings: Sequence[str], *, chat: bool, unload: bool) -> bytes:
    """The answer to a request that only loads the model."""
    made = OllamaAnswer(model=model, created_at=_now(), done=True)
    made.done_reason = "unload" if unload else "load"
    if chat:
        made.message = OllamaMessage("assistant", "")
    else:
        made.response = ""
    made.warnings = list(warnings) or None
    return _written(made)


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _written(made: OllamaAnswer) -> bytes:
    """With ``content`` and ``response`` even where they are empty: clients read them."""
    found: dict[str, Any] = msgspec.to_builtins(made)
    if made.message is not None:
        found["message"]["content"] = made.message.content
    return _encode(found)


def _call(call_id: str, name: str, arguments: str) -> OllamaCall:
    return OllamaCall(OllamaFunction(name, read_arguments(arguments)), call_id)


def _durations(timing: Timing) -> tuple[int, int, int]:
    """Nanoseconds of the whole, until the first token, and from there on."""
    first = timing.first_ns or timing.end_ns
    total, prompt = timing.end_ns - timing.arrival_ns, first - timing.arrival_ns
    return max(0, total), max(0, prompt), max(0, timing.end_ns - first)
