"""``docs/API.md``: every field of every request, made of the types that decode requests and of the
table of fields. ``python -m tools.docs.api`` writes it; a test holds the two together.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from pyengine.http.fields.policy import Alias, FieldPolicy, Hint, Refused, described
from pyengine.http.fields.table import table
from pyengine.http.operations.operation import Operation
from pyengine.http.operations.paths import operations

PAGE = Path(__file__).resolve().parents[2] / "docs" / "API.md"
HEAD = """# Fields of requests

<!-- Made by `python -m tools.docs.api` of the types and of pyengine/http/fields/table.py. -->

A field of a request is one of four things:

- **honoured**: it does what it says, or is refused by name where its value is none it may have;
- **a hint**: it cannot change this answer. It is accepted, and told of once, in the list `warnings`
  of the answer (of its first chunk) and in the header `x-pyengine-warnings`. So is the *neutral*
  value of a field that is not supported: it asks for what is done anyway. `null` asks for nothing;
- **refused**: it would change the answer. Status 400, code `unsupported_parameter`, its name in
  `error.param`;
- **unknown**: 400 too, with the nearest known name. `--unknown-fields warn` leaves it out with a
  warning instead.

The names are those of OpenAI, vLLM, SGLang, llama.cpp, LiteLLM and Anthropic. Sampling parameters
mean what [`SamplingParams`](reference/parameters.md) says of them.
"""


def page() -> str:
    """The page."""
    policy, made, seen = FieldPolicy(table()), [HEAD], set()
    for (method, path), operation in _generating():
        made.append(f"## {method} {path}\n\n{operation.summary}\n")
        made.append(_tables(operation.request, policy))
        for inner in _inside(operation.request, set()):
            if inner not in seen and inner is not operation.request:
                seen.add(inner)
    made += [
        f"## {kind.__name__}\n\n{_about(kind)}\n\n{_tables(kind, policy)}"
        for kind in sorted(seen | set(table()) - _requests(), key=lambda kind: kind.__name__)
        if kind.__struct_fields__ or table().get(kind)
    ]
    return "\n".join(made)


def _requests() -> set[Any]:
    found: set[Any] = set()
    for _, operation in _generating():
        found |= set(operation.request.__mro__)
    return found


def _generating() -> list[tuple[tuple[str, str], Operation]]:
    """The operations that take a body, but for those of administrators."""
    return [
        (where, operation)
        for where, operation in operations().items()
        if operation.request is not None and not where[1].startswith("/admin")
    ]


def _about(kind: type[msgspec.Struct]) -> str:
    return (kind.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ").replace("``", "`")


def _inside(kind: type[msgspec.Struct], seen: set[Any]) -> Iterator[type[msgspec.Struct]]:
    """The structs within a struct, all the way down."""
    if kind in seen:
        return
    seen.add(kind)
    yield kind
    todo: list[Any] = [inspect.type_info(kind)]
    fields = [field.type for field in todo[0].fields]
    while fields:
        at = fields.pop()
        if isinstance(at, inspect.UnionType):
            fields += at.types
        elif isinstance(at, inspect.ListType):
            fields.append(at.item_type)
        elif isinstance(at, inspect.StructType):
            yield from _inside(at.cls, seen)


def _tables(kind: type[msgspec.Struct], policy: FieldPolicy) -> str:
    """A line for each category of fields."""
    others = list(described(policy, kind))
    lines = {
        "Honoured": [f"`{field.encode_name}`" for field in msgspec.structs.fields(kind)],
        "Other names": [f"`{n}` (`{e.of}`)" for n, e in others if isinstance(e, Alias)],
        "Hints": [f"`{name}`" for name, effect in others if isinstance(effect, Hint)],
        "Refused": [_refused(n, e) for n, e in others if isinstance(e, Refused)],
    }
    return (
        "\n".join(f"- {what}: {', '.join(names)}." for what, names in lines.items() if names) + "\n"
    )


def _refused(name: str, effect: Refused) -> str:
    neutral = " or ".join(f"`{msgspec.json.encode(each).decode()}`" for each in effect.neutral)
    notes = [f"neutral {neutral}" if neutral else "", f"use `{effect.say}`" if effect.say else ""]
    text = "; ".join(filter(None, notes))
    return f"`{name}` ({text})" if text else f"`{name}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
