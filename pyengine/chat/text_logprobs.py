"""Which of an answer's tokens wrote its text, and not reasoning, calls and their markers."""

from collections import deque
from collections.abc import Iterable

from pyengine.logprobs import TokenLogprob


class TextLogprobs:
    r"""Sorts tokens by the spans of an answer that are known to be its text, or its reasoning.

    ::

        spans        <think>[Let me see.]</think>\n\n[I look.]\n<tool_call>...
        tokens       <think>|Let| me| see|.</|think>|\n\nI| look|.|\n<|tool_call>|...
        of the text                                  \n\nI| look|.

    A token is of the text if any of its characters is. Tokens and spans come in order each, and
    either may come first: a token waits until a span reaches as far as it does. O(1) for each token
    and span. One thread at a time.
    """

    __slots__ = ("_next", "_spans", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[TokenLogprob] = deque()
        self._spans: list[tuple[int, int, bool]] = []  # adjoining ones are merged
        self._next = 0  # the first span that may hold the tokens that wait

    def add_span(self, begin: int, end: int, *, is_text: bool) -> None:
        """What the model wrote from ``begin`` to ``end``, in characters, is text or reasoning."""
        if self._spans and self._spans[-1][1:] == (begin, is_text):
            begin = self._spans.pop()[0]
            self._next = min(self._next, len(self._spans))
        self._spans.append((begin, end, is_text))

    def known(self, entries: Iterable[TokenLogprob]) -> tuple[TokenLogprob, ...]:
        """The tokens of the text that are known now, after ``entries`` have come too."""
        spans = self._spans
        self._waiting.extend(entries)
        found = []
        while self._waiting:
            entry = self._waiting[0]
            begin = entry.text_offset
            end = begin + max(1, len(entry.token))
            while self._next < len(spans) and spans[self._next][1] <= begin:
                self._next += 1
            if self._touches_text(end):
                found.append(entry)
            elif not spans or spans[-1][1] < end:
                break
            self._waiting.popleft()
        return tuple(found)

    def _touches_text(self, end: int) -> bool:
        """Whether what waits first, up to ``end``, has a part in a text."""
        for at in range(self._next, len(self._spans)):
            start, _, is_text = self._spans[at]
            if start >= end:
                return False
            if is_text:
                return True
        return False

    def among(self, entries: Iterable[TokenLogprob]) -> tuple[TokenLogprob, ...]:
        """The tokens of the text among all those of an answer whose spans have come."""
        anew = TextLogprobs()
        anew._spans = self._spans
        return anew.known(entries)
