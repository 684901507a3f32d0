"""``custom`` tools, which a model calls with a text in the place of arguments.

The model knows such a tool as a function of one string, in whatever way its format writes calls.
A regular expression for the text, and a Lark grammar that is one, are the string's pattern; the
text is read out of the call's JSON as it comes.
"""

import json
import re

import msgspec

from pyengine.chat.tools import Tool
from pyengine.grammar.lark_regex import NotRegularError, regex_of_lark
from pyengine.http.openai.schema.tools import TextGrammar

INPUT = "input"
_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
# As much of a string as is whole: no half of an escape, nor the first half of a surrogate pair.
_WHOLE = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[0-9a-fA-F]{4}\\u[0-9a-fA-F]{4})*'
)


def custom_tool(
    name: str, description: str | None, grammar: TextGrammar | None, at: str, warn: dict[str, None]
) -> Tool:
    """The function that the model knows a custom tool as.

    Args:
        name: Its name.
        description: What it does.
        grammar: The grammar of its text; None: any.
        at: Its place in the request, for errors.
        warn: Takes what is told of a grammar that is not enforced.

    Raises:
        InvalidRequestError: The name is malformed.
    """
    text: dict[str, str] = {"type": "string"}
    told = description or ""
    if grammar is not None:
        told += f"\n\nIts input follows this {grammar.syntax} grammar:\n{grammar.definition}"
        try:
            text["pattern"] = f"^(?:{_pattern(grammar)})$"
        except NotRegularError as error:
            warn[f"'{at}.format' is told to the model and not enforced: {error.message}."] = None
    parameters = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    given = {"name": name, "description": told.strip(), "parameters": parameters}
    return Tool.from_function(given, at)


def _pattern(grammar: TextGrammar) -> str:
    return grammar.definition if grammar.syntax == "regex" else regex_of_lark(grammar.definition)


def arguments_of(text: str) -> str:
    """The arguments by which the model's format writes a call with this text."""
    return msgspec.json.encode({INPUT: text}).decode()


class InputText:
    """Reads the text of a custom call out of its arguments, as they come."""

    __slots__ = ("_begun", "_rest")

    def __init__(self) -> None:
        self._rest = ""
        self._begun = False

    def feed(self, arguments: str) -> str:
        """Returns the text that further arguments bring."""
        self._rest += arguments
        if not self._begun:
            found = _BEGIN.match(self._rest)
            if found is None:
                return ""
            self._begun, self._rest = True, self._rest[found.end() :]
        whole = _WHOLE.match(self._rest)
        assert whole is not None  # it matches the empty text
        self._rest = self._rest[whole.end() :]
        text: str = json.loads(f'"{whole.group()}"', strict=False)
        return text


def input_of(arguments: str) -> str:
    """The text of a call with these arguments, as far as they go."""
    return InputText().feed(arguments)
