"""Meanings of the fields of requests, for ``/openapi.json`` and ``docs/API.md``.

They come from docstrings: the ``Attributes`` of the field's type, the first sentence of an object's
type, parameters and options of the library, and the ``Attributes`` of other types that have the
name. Names in many small objects are described here.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as kinds

from pyengine.chat.options import ChatOptions
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams, bound

# Names that mean the same in many objects.
_NAMES = {
    "anchor": "The time that the seconds count from.",
    "arguments": "The arguments as JSON.",
    "choices": "The options, 2 to 255, all different.",
    "content": "The text, or its parts.",
    "context": "What is said of the document before its text.",
    "continuous_usage_stats": "Whether every chunk tells the usage so far.",
    "data": "The text, or what only its own server can read.",
    "definition": "The grammar.",
    "description": "What it is for, or when it applies; the model reads it.",
    "disable_parallel_tool_use": "At most one call.",
    "display": "Whether thinking is shown, or comes in the signature alone.",
    "edits": "What is left out, and when.",
    "effort": "The effort, for a chat template that reads one.",
    "format": "The form of the text: a JSON Schema, a grammar, or any.",
    "id": "Its id.",
    "include_obfuscation": "Whether deltas are padded, so that their sizes tell nothing.",
    "include_usage": "Whether a last chunk tells the usage.",
    "index": "Its place, as a client that puts streamed deltas together may leave it in.",
    "input": "The input: a text, or a list of items or texts.",
    "instruction": "What a reranker is to look for.",
    "instructions": "What the model is told before the input, or what a question asks.",
    "label": "The level's name.",
    "levels": "The levels, 2 to 255, from the lowest to the highest; they are counted from 0.",
    "media_type": "The form of the text.",
    "mode": "Whether one of the tools must be called: auto or required.",
    "name": "Its name.",
    "parsed_arguments": "What OpenAI's client has read out of the arguments, and leaves there.",
    "purpose": "What the file is for.",
    "schema": "The JSON Schema.",
    "seconds": "Seconds from the anchor on.",
    "signature": "The thinking, packed.",
    "source": "The document's text.",
    "structures": "The tags and the schemas behind them.",
    "syntax": "The grammar's form: Lark or a regular expression.",
    "system": "The system message.",
    "text": "The text.",
    "text_1": "A text, or several.",
    "text_2": "A text, or several, each compared with text_1 or with its own.",
    "title": "The document's title.",
    "tokens": "Token ids.",
    "tool_name": "The tool's name.",
    "tool_use_id": "The id of the call that this is the result of.",
    "triggers": "The texts that structures begin with.",
    "type": "What kind it is.",
    "value": "The number, or the option.",
}
# Names of the library's that requests have another name for.
_LIBRARY = {
    "budget_tokens": "thinking_budget",
    "chat_template_kwargs": "template_arguments",
    "include_stop_str_in_output": "include_stop",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
    "user": "tenant",
    "user_id": "tenant",
}
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
_SENTENCE = re.compile(r"(?:``\w+``: )?(.+?\.)(?:\s|$)", re.DOTALL)


class Meanings:
    """The meanings of the fields of these requests and of all objects within them."""

    def __init__(self, requests: Iterable[type[msgspec.Struct]]) -> None:
        self._elsewhere: dict[str, str] = {}
        for request in requests:
            for kind in structs_within(request):
                self._elsewhere = documented(kind) | self._elsewhere

    def of(self, kind: type[msgspec.Struct], name: str) -> str | None:
        """What a field means, in a sentence or a few; None where nothing says it."""
        if (known := documented(kind).get(name) or _of_object(kind, name)) is not None:
            return known
        if name.startswith("guided_"):
            return f"Other name of structured_outputs.{name.removeprefix('guided_')}."
        library = _LIBRARY.get(name, name)
        if (found := documented(SamplingParams).get(library)) is not None:
            wanted = bound(library)
            return found if wanted is None else f"{found} It must be {wanted}."
        options = documented(RequestOptions) | documented(ChatOptions)
        found = _first_sentence(options.get(library)) or _NAMES.get(name)
        return found or self._elsewhere.get(name)


@cache
def documented(kind: type) -> dict[str, str]:
    """The meanings of a type's fields that its docstring has, and those of its bases."""
    texts = [inspect.cleandoc(base.__doc__ or "") for base in reversed(kind.__mro__)]
    entries = [
        entry for text in texts for entry in _ENTRY.findall(text.partition("Attributes:\n")[2])
    ]
    return {name: " ".join(meaning.split()) for name, meaning in entries}


def _of_object(kind: type[msgspec.Struct], name: str) -> str | None:
    """What is said of the one kind of object that a field may have; None without one."""
    info: Any = kinds.type_info(kind)
    types = [field.type for field in info.fields if field.encode_name == name]
    options = [each for of in types for each in getattr(of, "types", [of])]
    objects = [option.cls for option in options if isinstance(option, kinds.StructType)]
    return _first_sentence(inspect.getdoc(objects[0])) if len(objects) == 1 else None


def _first_sentence(text: str | None) -> str | None:
    found = _SENTENCE.match(text or "")
    return None if found is None else " ".join(f"{found[1][:1].upper()}{found[1][1:]}".split())


def structs_within(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """A struct and those within it, all the way down, each once."""
    seen: set[Any] = set()
    todo: list[Any] = [kinds.type_info(kind)]
    while todo:
        at = todo.pop()
        if isinstance(at, kinds.UnionType):
            todo += at.types
        elif isinstance(at, kinds.ListType):
            todo.append(at.item_type)
        elif isinstance(at, kinds.StructType) and at.cls not in seen:
            seen.add(at.cls)
            yield at.cls
            todo += [field.type for field in at.fields]
