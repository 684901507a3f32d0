"""The values that a field of a request may have, for the error about any other."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")


@lru_cache(maxsize=256)
def choices(kind: Any, at: str) -> tuple[str, ...]:
    """The strings that may stand at a path inside a value of type ``kind``; none where any may.

    Args:
        kind: A type that msgspec decodes.
        at: As msgspec tells where it stopped, with all numbers and keys as ``[...]``:
            ``messages[...].role``.
    """
    here = list(_options(inspect.type_info(kind)))
    found: list[str] = []
    for step in _STEP.findall(at):
        structs = [kind for kind in here if isinstance(kind, inspect.StructType)]
        found = [str(struct.tag) for struct in structs if struct.tag_field == step]
        here = [inner for kind in here for inner in _inside(kind, step)]
    for kind in here:
        if isinstance(kind, inspect.LiteralType):
            found += [str(value) for value in kind.values]
    return tuple(dict.fromkeys(found))


def _options(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The types that a union is one of."""
    yield from kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _inside(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    """The types of what a step of a path leads to."""
    if isinstance(kind, inspect.StructType):
        for field in kind.fields:
            if field.encode_name == step:
                yield from _options(field.type)
    elif step.startswith("["):
        if isinstance(kind, inspect.ListType | inspect.VarTupleType):
            yield from _options(kind.item_type)
        elif isinstance(kind, inspect.DictType):
            yield from _options(kind.value_type)
