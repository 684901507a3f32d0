"""Reads an answer as it comes: what the model writes becomes text, reasoning and tool calls."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from pyengine.chat.answer import ChatUpdate, FinishReason, ToolCallDelta
from pyengine.chat.formats import ContentDelta, Parser, ReasoningDelta, ToolCallStart
from pyengine.chat.text_logprobs import TextLogprobs
from pyengine.completion import Update, Usage
from pyengine.logprobs import TokenLogprob


@dataclass(frozen=True)
class ReasoningTokens:
    """The tokens that open and close the reasoning, where each marker is one token."""

    open: int | None
    close: int


class Reader:
    """Turns the updates of one generation into those of an answer. The loop of its caller."""

    __slots__ = (
        "_count", "_hidden", "_markers", "_of_text", "_open", "_over", "_parser", "_reasoning",
        "_thought",
    )  # fmt: skip

    def __init__(
        self,
        parser: Parser,
        *,
        hidden: re.Pattern[str] | None = None,
        markers: ReasoningTokens | None = None,
        count: Callable[[str], int] | None = None,
        reasoning_open: bool = False,
    ) -> None:
        """Read with a parser.

        Args:
            parser: A fresh parser of the model's chat format.
            hidden: Matches special tokens, which the parser needs and the text leaves out.
            markers: Count the tokens of the reasoning by these.
            count: Gives the tokens of a text; counts the reasoning where there are no markers.
            reasoning_open: Whether the prompt has opened the reasoning.
        """
        self._parser = parser
        self._hidden = hidden
        self._markers = markers
        self._count = count
        self._reasoning: list[str] = []
        self._open = reasoning_open
        self._over = False  # whether the reasoning is over, or there will be none
        self._thought = 0
        self._of_text = TextLogprobs()

    def read(self, update: Update) -> ChatUpdate:
        """The update of the answer that an update of the generation makes."""
        events = self._parser.feed(update.text)
        finish: FinishReason | None = update.finish_reason
        if finish is not None:
            events += self._parser.finish()
        text, reasoning = "", ""
        calls: list[ToolCallDelta] = []
        for event in events:
            if update.logprobs is not None and isinstance(event, ContentDelta | ReasoningDelta):
                begin, is_text = event.end - len(event.text), isinstance(event, ContentDelta)
                self._of_text.add_span(begin, event.end, is_text=is_text)
            if isinstance(event, ContentDelta):
                text += event.text
            elif isinstance(event, ReasoningDelta):
                reasoning += event.text
            elif isinstance(event, ToolCallStart):
                calls.append(ToolCallDelta(event.index, event.id, event.name, ""))
            else:
                calls.append(ToolCallDelta(event.index, None, None, event.fragment))
        if self._hidden is not None:
            text = text and self._hidden.sub("", text)
            reasoning = reasoning and self._hidden.sub("", reasoning)
        if reasoning and self._markers is None:
            self._reasoning.append(reasoning)
        if finish == "stop" and self._parser.complete:
            finish = "tool_calls"
        return ChatUpdate(
            text,
            update.token_ids,
            finish,
            update.stop_string,
            update.stop_token,
            self._usage(update, bool(text or calls)),
            update.warnings,
            reasoning,
            tuple(calls),
            update.logprobs,
            None if update.logprobs is None else self._shown(self._of_text.known(update.logprobs)),
        )

    def is_content(self, text: str) -> bool:
        """Whether all of ``text``, which comes next, is text of the answer for sure.

        If so, it is read: :meth:`read` need not be asked. O(text).
        """
        if self._markers is not None and not self._over:
            return False
        if self._hidden is not None and self._hidden.search(text) is not None:
            return False
        return self._parser.is_content(text)

    def text_logprobs(self, entries: Iterable[TokenLogprob]) -> tuple[TokenLogprob, ...]:
        """The tokens that wrote the text, among all of an answer that was read to its end."""
        return self._shown(self._of_text.among(entries))

    def _shown(self, entries: tuple[TokenLogprob, ...]) -> tuple[TokenLogprob, ...]:
        """Without those that are left out of the text."""
        hidden = self._hidden
        if hidden is None:
            return entries
        return tuple(entry for entry in entries if hidden.fullmatch(entry.token) is None)

    def _usage(self, update: Update, spoke: bool) -> Usage:
        """The usage with the reasoning's tokens.

        ``spoke``: anything but reasoning has come. A marker after that opens nothing any more.
        """
        if (markers := self._markers) is not None:
            self._follow(update, markers, spoke)
        elif self._count is None or update.finish_reason is None:
            return update.usage
        else:
            self._thought = self._count("".join(self._reasoning))
        return replace(update.usage, reasoning_tokens=self._thought)

    def _follow(self, update: Update, markers: ReasoningTokens, spoke: bool) -> None:
        """Count the tokens of an update that are reasoning, markers counted in."""
        if spoke and not self._open and markers.close not in update.token_ids:
            self._over = True
        for token in update.token_ids:
            if self._over:
                break
            self._open = self._open or token == markers.open
            self._thought += self._open
            self._over = token == markers.close
