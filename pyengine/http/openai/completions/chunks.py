"""The chunks of completions, encoded around a prefix that is made once a stream."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from pyengine.chat.answer import ChatUpdate, ToolCallDelta
from pyengine.completion import Update, Usage
from pyengine.errors import PyengineError
from pyengine.http.errors import error_body
from pyengine.http.openai.completions.functions import FINISH
from pyengine.http.openai.completions.stream_fields import StreamFields
from pyengine.http.openai.custom_tools import InputText
from pyengine.http.openai.logprobs import chat_logprobs, completion_logprobs
from pyengine.http.openai.schema.common import usage_object
from pyengine.http.streams.event_stream import padding

_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
_TEXT = "\0"  # no field behind the text has it


class _Encoder:
    """The parts that all chunks of one stream share."""

    kind: str

    def __init__(self, fields: StreamFields) -> None:
        head = _encode({"id": fields.head["id"], "object": self.kind, **fields.head})
        self._head = b"data: " + head[:-1] + b',"choices":'
        self._fields = fields
        self._tail = b',"usage":null}\n\n' if fields.usage else b"}\n\n"
        self._sent_warnings: set[str] = set()
        self._ids = b""

    @property
    def _says_more(self) -> bool:
        """Whether chunks of text say more than their text."""
        fields = self._fields
        return fields.usage_so_far or fields.pads or fields.prompts is not None

    def _tell(self, update: Update | ChatUpdate) -> None:
        """Let the first chunk of ``update`` tell its token ids, if they are wanted."""
        if self._fields.prompts is not None and update.token_ids:
            self._ids = b',"token_ids":%b' % _encode(update.token_ids)

    def _told(self) -> bytes:
        """The token ids that the chunk being made tells."""
        ids, self._ids = self._ids, b""
        return ids

    def _prompt(self, index: int) -> bytes:
        """The ids of a choice's prompt and its log-probabilities, if they are wanted."""
        fields, told = self._fields, b""
        if fields.prompts is not None:
            told = b',"prompt_token_ids":%b' % _encode(fields.prompts[index // fields.n])
        if fields.scores is not None:
            told += b',"prompt_logprobs":%b' % _encode(fields.scores(index))
        return told

    def _padding(self, text: bytes) -> bytes:
        """What makes the sizes of chunks tell nothing of their texts, if that is wanted."""
        if not self._fields.pads:
            return b""
        return b',"obfuscation":"%b"' % padding(len(text)).encode()

    def _count(self, update: Update | ChatUpdate) -> None:
        """Let the chunks of ``update`` say the usage of its choice so far, if that is wanted."""
        if self._fields.usage_so_far:
            self._tail = b',"usage":%b}\n\n' % _encode(usage_object([update.usage]))

    def last(self, usages: list[Usage]) -> bytes:
        """The chunk of usage, if it was asked for, and the end."""
        if not self._fields.usage:
            return DONE
        return b'%b[],"usage":%b}\n\n%b' % (
            self._head,
            _encode(usage_object(usages, self._fields.n)),
            DONE,
        )

    def error(self, error: PyengineError) -> bytes:
        """As OpenAI's clients know it."""
        return b"data: %b\n\n" % error_body(error)

    def _first_tail(self, update: Update | ChatUpdate) -> bytes:
        """The end of a first chunk: with warnings, where there are any."""
        given = dict.fromkeys((*self._fields.warnings, *update.warnings))
        warnings = [warning for warning in given if warning not in self._sent_warnings]
        self._sent_warnings.update(warnings)
        if not warnings:
            return self._tail
        return b',"warnings":%b%b' % (_encode(warnings), self._tail)


def _around(chunk: bytes) -> Callable[[str], bytes]:
    """Encodes texts in the place of the one that ``chunk`` has, which is :data:`_TEXT`."""
    before, _, after = chunk.rpartition(_encode(_TEXT))

    def encode(text: str) -> bytes:
        return before + _encode(text) + after

    return encode


class _ChatEncoder(_Encoder):
    kind = "chat.completion.chunk"

    def _choice(
        self,
        index: int,
        delta: bytes,
        finish: bytes,
        tail: bytes | None = None,
        logprobs: bytes = b"null",
    ) -> bytes:
        return b'%b[{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b}]%b%b' % (
            self._head,
            index,
            delta,
            logprobs,
            finish,
            self._told(),
            self._padding(delta),
            self._tail if tail is None else tail,
        )

    def text_encoder(self, index: int) -> Callable[[str], bytes] | None:
        """A faster :meth:`update` for updates with text alone; None where chunks have more."""
        if self._says_more:
            return None
        return _around(self._text(index, _TEXT))

    def _text(self, index: int, text: str, logprobs: bytes = b"null") -> bytes:
        return self._choice(index, b'{"content":%b}' % _encode(text), b"null", logprobs=logprobs)

    def _in_chat(self, update: Update | ChatUpdate) -> bytes:
        """The log-probabilities of an update, or null."""
        if update.logprobs is None:
            return b"null"
        return _encode(chat_logprobs(self._fields.logprobs(update)))


class ChatChunks(_ChatEncoder):
    """Chunks of ``chat.completion.chunk``: first the role, then text, last the finish reason."""

    def first(self, index: int, update: Update) -> bytes:
        """The role."""
        self._count(update)
        delta = b'{"role":"assistant","content":"","refusal":null}'
        return self._choice(index, delta, b"null", self._prompt(index) + self._first_tail(update))

    def update(self, index: int, update: Update) -> bytes:
        """The text, and the finish reason in a chunk of its own."""
        self._count(update)
        self._tell(update)
        data = b""
        # A token's log-probabilities may come after its text, and its text after its id.
        if update.text or update.logprobs or self._ids:
            data = self._text(index, update.text, self._in_chat(update))
        if update.finish_reason is not None:
            data += self._choice(index, b"{}", _encode(update.finish_reason))
        return data


class AnswerChunks(_ChatEncoder):
    """As :class:`ChatChunks`, for answers with reasoning and tool calls.

    A call comes as its name, with empty arguments, and then the arguments in fragments.
    """

    def __init__(
        self,
        fields: StreamFields,
        customs: frozenset[str] = frozenset(),
        include_reasoning: bool = True,
        *,
        functions: bool = False,
    ) -> None:
        """``customs``: the names of custom tools; ``functions``: calls are in their older form."""
        super().__init__(fields)
        self._customs = customs
        self._include_reasoning = include_reasoning
        self._functions = functions
        self._texts: dict[tuple[int, int], InputText] = {}  # by the choice and the call

    def first(self, index: int, update: ChatUpdate) -> bytes:
        """The role; content is null until there is some."""
        self._count(update)
        content = b'""' if update.text else b"null"
        delta = b'{"role":"assistant","content":%b,"refusal":null}' % content
        return self._choice(index, delta, b"null", self._prompt(index) + self._first_tail(update))

    def update(self, index: int, update: ChatUpdate) -> bytes:
        """Reasoning, text, calls and the finish reason, each in a chunk of its own.

        The first of them has the log-probabilities of all.
        """
        self._count(update)
        self._tell(update)
        data, logprobs = b"", self._in_chat(update) if update.logprobs else b"null"
        for delta in self._deltas(index, update):
            data += self._choice(index, delta, b"null", logprobs=logprobs)
            logprobs = b"null"
        if update.finish_reason is not None or logprobs != b"null" or self._ids:
            # Tokens may come before it is clear whether they are text.
            reason: str | None = update.finish_reason
            if self._functions and reason == "tool_calls":
                reason = FINISH
            finish = _encode(reason)
            data += self._choice(index, b"{}", finish, logprobs=logprobs)
        return data

    def _deltas(self, index: int, update: ChatUpdate) -> Iterator[bytes]:
        if update.reasoning and self._include_reasoning:
            yield b'{"reasoning_content":%b}' % _encode(update.reasoning)
        if update.text:
            yield b'{"content":%b}' % _encode(update.text)
        for call in update.tool_calls:
            if self._functions:
                named = b"" if call.name is None else b'"name":%b,' % _encode(call.name)
                yield b'{"function_call":{%b"arguments":%b}}' % (named, _encode(call.arguments))
                continue
            if call.name in self._customs:
                self._texts[index, call.index] = InputText()
            text = self._texts.get((index, call.index))
            made = _call(call) if text is None else _custom(call, text.feed(call.arguments))
            if made is not None:
                yield b'{"tool_calls":[%b]}' % made


def _custom(call: ToolCallDelta, text: str) -> bytes | None:
    """A custom call begins, or more of its text comes; None: nothing to tell."""
    if call.id is not None:
        return b'{"index":%d,"id":%b,"type":"custom","custom":{"name":%b,"input":%b}}' % (
            call.index,
            _encode(call.id),
            _encode(call.name),
            _encode(text),
        )
    return b'{"index":%d,"custom":{"input":%b}}' % (call.index, _encode(text)) if text else None


def _call(call: ToolCallDelta) -> bytes:
    if call.id is None:
        return b'{"index":%d,"function":{"arguments":%b}}' % (call.index, _encode(call.arguments))
    return b'{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":%b}}' % (
        call.index,
        _encode(call.id),
        _encode(call.name),
        _encode(call.arguments),
    )


class CompletionChunks(_Encoder):
    """Chunks of ``text_completion``: text, the last with the finish reason.

    ``echoed`` holds the prompts' texts, if they stand before their answers.
    """

    kind = "text_completion"

    def __init__(self, fields: StreamFields, echoed: Sequence[str] = ()) -> None:
        super().__init__(fields)
        self._echoed = echoed

    def first(self, index: int, update: Update) -> bytes:
        """The prompt and the warnings, if there are any: there is no role."""
        self._count(update)
        tail = self._first_tail(update)
        text = self._echoed[index // self._fields.n] if self._echoed else ""
        self._ids = self._prompt(index)
        echoed = None if self._fields.echoed is None else self._fields.echoed(index)
        if tail is self._tail and not text and not self._ids and echoed is None:
            return b""
        return self._choice(index, _encode(text), b"null", tail, echoed)

    def update(self, index: int, update: Update) -> bytes:
        """The text and the finish reason in one chunk."""
        self._tell(update)
        # A token's log-probabilities may come after its text, and its text after its id.
        says = update.text or update.logprobs or self._ids
        if not says and update.finish_reason is None:
            return b""
        self._count(update)
        finish = _encode(update.finish_reason)
        logprobs = completion_logprobs(self._fields.logprobs(update))
        if logprobs is not None and self._echoed:
            before = len(self._echoed[index // self._fields.n])
            logprobs["text_offset"] = [before + offset for offset in logprobs["text_offset"]]
        return self._choice(index, _encode(update.text), finish, self._tail, logprobs)

    def text_encoder(self, index: int) -> Callable[[str], bytes] | None:
        """A faster :meth:`update` for updates with text alone; None where chunks have more."""
        if self._says_more:
            return None
        return _around(self._choice(index, _encode(_TEXT), b"null", self._tail, None))

    def _choice(
        self,
        index: int,
        text: bytes,
        finish: bytes,
        tail: bytes,
        logprobs: dict[str, Any] | None,
    ) -> bytes:
        return b'%b[{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b%b}]%b%b' % (
            self._head,
            index,
            text,
            b"null" if logprobs is None else _encode(logprobs),
            finish,
            self._told(),
            self._padding(text),
            tail,
        )
