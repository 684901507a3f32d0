"""Grammars: the answer follows one."""

from dataclasses import dataclass, field
from typing import ClassVar, TypedDict

from pyengine.errors import InvalidGrammarError, InvalidRequestError
from pyengine.grammar.description import Grammar
from pyengine.messages import Extension
from pyengine.request.arguments import wrong_type
from pyengine.request.features.feature import Asked, Feature, Options

# The compiler's limit; a longer description would only fill the Scheduler's mailbox.
MAX_GRAMMAR_BYTES = 1 << 20


class GrammarExtension(Extension):
    """Asks for an answer that follows a grammar.

    Attributes:
        description: The grammar; see :meth:`pyengine.grammar.Grammar.description`.
        close: Bring the answer to an end of its grammar within ``max_tokens``.
    """

    TAG: ClassVar[str] = "grammar"

    description: bytes
    close: bool


class ClosingKeywords(TypedDict, total=False):
    """The keyword for a grammar that a chat may bring itself; see :class:`GrammarOptions`."""

    close_grammar: bool


class GrammarKeywords(ClosingKeywords, total=False):
    """The keywords for grammars; see :class:`GrammarOptions`."""

    grammar: Grammar | None


@dataclass(frozen=True, kw_only=True)
class GrammarOptions(Options):
    """The options for grammars.

    Attributes:
        grammar: The grammar of the answer; see :mod:`pyengine.grammar`. One that cannot be enforced
            ends the request with InvalidGrammarError.
        close_grammar: End what the grammar has begun within ``max_tokens``, so that the answer
            parses; it may say less than it would have. Where the end begins depends on how soon one
            is found. Only with a grammar, or with tools.
        grammar_description: The grammar as the compiler reads it; made from ``grammar``.
    """

    grammar: Grammar | None = None
    close_grammar: bool = False
    grammar_description: bytes | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        description = _description(self.grammar, self.close_grammar)
        object.__setattr__(self, "grammar_description", description)


def _description(grammar: Grammar | None, close: bool) -> bytes | None:
    """Returns the grammar's description; refuses one that is too long to be sent."""
    if not isinstance(close, bool):
        raise InvalidRequestError("'close_grammar' must be a bool", param="close_grammar")
    if grammar is None:
        if close:
            raise InvalidRequestError(
                "'close_grammar' needs a grammar to close.", param="close_grammar"
            )
        return None
    if not isinstance(grammar, Grammar):
        raise wrong_type("grammar", "a Grammar, such as json_schema(...)", grammar)
    description = grammar.description()
    if len(description) > MAX_GRAMMAR_BYTES:
        raise InvalidGrammarError(
            f"the grammar's description has {len(description)} bytes; "
            f"at most {MAX_GRAMMAR_BYTES} are taken",
            param="grammar",
        )
    return description


def _ask(asked: Asked, options: GrammarOptions) -> GrammarExtension | None:
    description = options.grammar_description
    return None if description is None else GrammarExtension(description, options.close_grammar)


FEATURE = Feature(GrammarExtension, _ask)
