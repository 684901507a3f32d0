"""Meanings of the fields of requests, for ``/openapi.json`` and ``docs/API.md``.

They come from docstrings: the ``Attributes`` of the field's type, the first sentence of an object's
type, parameters and options of the library, and the ``Attributes`` of other types that have the
name. Names in many small objects are described in ``meanings.json``.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as kinds

from pyengine.chat.options import ChatOptions
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams, bound

# Names that mean the same in many objects.
_NAMES = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=dict[str, str])
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
