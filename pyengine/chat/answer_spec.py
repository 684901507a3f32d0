"""How the answers to a prompt are generated and read."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from pyengine.chat.content_tokens import Prompt
from pyengine.chat.formats import ChatFormat
from pyengine.chat.generation import ChatGeneration
from pyengine.chat.reader import Reader, ReasoningTokens
from pyengine.chat.tools import Tool
from pyengine.grammar import Grammar
from pyengine.request.features.thinking_budget import ThinkingBudget
from pyengine.request.generation import Generation
from pyengine.request.options import RequestKeywords, RequestOptions
from pyengine.sampling import SamplingParams


@dataclass(frozen=True)
class AnswerSpec:
    """How the answers to a prompt are generated and read: any number, each with its own reader.

    Attributes:
        prompt: The rendered conversation; :meth:`ChatHandler.encode` gives its token ids.
        warnings: What the prompt leaves out of the conversation.
        params: The request's, and what the chat format needs besides.
        grammar: The grammar of all that the model may write; None is any text.
        thinking_budget: Bounds the reasoning.
    """

    prompt: Prompt
    warnings: tuple[str, ...]
    params: SamplingParams
    grammar: Grammar | None
    thinking_budget: ThinkingBudget | None = None
    _format: ChatFormat | None = None
    _tools: tuple[Tool, ...] = ()
    _reasoning_open: bool = False
    _hidden: re.Pattern[str] | None = None
    _markers: ReasoningTokens | None = None
    _count: Callable[[str], int] | None = None
    _content: bool = False  # whether the answer's text follows the request's grammar
    _schema_warnings: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether all that the model writes is the answer's text, which then needs no reader."""
        return self._format is None

    def request_options(self, others: RequestKeywords) -> RequestOptions:
        """The options of the request that generates an answer, besides ``others``."""
        return RequestOptions(grammar=self.grammar, thinking_budget=self.thinking_budget, **others)

    def answer(self, generation: Generation) -> ChatGeneration:
        """The answer that ``generation`` writes, from this spec's prompt, params and grammar."""
        return ChatGeneration(generation, self.reading)

    def reading(self) -> tuple[Reader | None, tuple[str, ...]]:
        """The reader of one answer, None where all of it is text; and the warnings."""
        if self._format is None:
            return None, self.warnings
        parser = self._format.parser(
            self._tools, reasoning_open=self._reasoning_open, content=self._content
        )
        reader = Reader(
            parser,
            hidden=self._hidden,
            markers=self._markers,
            count=self._count,
            reasoning_open=self._reasoning_open,
        )
        return reader, self.warnings + self._schema_warnings
