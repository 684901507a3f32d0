"""``docs/API.md``: every field of every request, made of the types that decode requests and of the
table of fields. ``python -m tools.docs.api`` writes it; a test holds the two together.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from pyengine.http.fields.meanings import meaning, structs_within
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
mean what [`SamplingParams`](reference/parameters.md) says of them. The fields that are honoured
stand first, by endpoint; other names, hints and what is refused are at the end, each once.
"""
OTHERS = """# Other names, hints and what is refused

By the requests and objects that may have them; a neutral value asks for what is done anyway.
"""


def page() -> str:
    """The page."""
    policy, made, seen = FieldPolicy(table()), [HEAD], set()
    for (method, path), operation in _generating():
        made.append(f"## {method} {path}\n\n{operation.summary}\n")
        made.append(_honoured(operation.request))
        seen |= set(structs_within(operation.request)) - {operation.request}
    made.append("# Objects within requests\n")
    made += [
        f"## {kind.__name__}\n\n{_about(kind)}\n\n{_honoured(kind)}"
        for kind in sorted(seen, key=lambda kind: kind.__name__)
        if kind.__struct_fields__
    ]
    made.append(OTHERS)
    told: dict[str, list[str]] = {}
    for kind in sorted(seen | _requests(), key=lambda kind: kind.__name__):
        for name, effect in described(policy, kind):
            told.setdefault(_effect(name, effect), []).append(kind.__name__)
    by_kinds: dict[tuple[str, ...], list[str]] = {}
    for line, having in told.items():
        by_kinds.setdefault(tuple(having), []).append(line)
    for kinds, lines in sorted(by_kinds.items()):
        made.append(f"- {', '.join(kinds)}: {'; '.join(sorted(lines))}.")
    return "\n".join(made) + "\n"


def _requests() -> set[Any]:
    return {operation.request for _, operation in _generating()}


def _generating() -> list[tuple[tuple[str, str], Operation]]:
    """The operations that take a body, but for those of administrators."""
    return [
        (where, operation)
        for where, operation in operations().items()
        if operation.request is not None and not where[1].startswith("/admin")
    ]


def _about(kind: type[msgspec.Struct]) -> str:
    return (kind.__doc__ or "").strip().split("\n\n")[0].replace("\n   ", "").replace("``", "`")


def _honoured(kind: type[msgspec.Struct]) -> str:
    """A table of the fields that a type has."""
    info: Any = inspect.type_info(kind)
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field in info.fields:
        words = meaning(kind, field.encode_name) or ""
        default = "required" if field.required else _default(field)
        told = words.replace("|", "\\|").replace("``", "`")
        rows.append(f"| `{field.encode_name}` | {_words(field.type)} | {default} | {told} |")
    return "\n".join(rows) + "\n"


def _default(field: Any) -> str:
    made = field.default is msgspec.NODEFAULT
    value = field.default_factory() if made else field.default
    return "" if value is None else f"`{msgspec.json.encode(value).decode()}`"


_NAMES: dict[Any, str] = {
    inspect.StrType: "text", inspect.IntType: "integer", inspect.FloatType: "number",
    inspect.BoolType: "true or false", inspect.AnyType: "any", inspect.DictType: "object",
}  # fmt: skip


def _words(kind: Any) -> str:
    """A type in words; objects are links to their tables."""
    if isinstance(kind, inspect.UnionType):
        options = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        return " or ".join(dict.fromkeys(map(_words, options)))
    if isinstance(kind, inspect.ListType):
        return f"list of {_words(kind.item_type)}"
    if isinstance(kind, inspect.StructType) and not kind.fields:
        return f"`type` of `{kind.tag}`"
    if isinstance(kind, inspect.StructType):
        return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
    if isinstance(kind, inspect.LiteralType):
        return ", ".join(f"`{value}`" for value in kind.values)
    return _NAMES.get(type(kind), "object")


def _effect(name: str, effect: Alias | Hint | Refused) -> str:
    """What becomes of a field that no type has."""
    if isinstance(effect, Alias):
        return f"`{name}` is `{effect.of}`"
    if isinstance(effect, Hint):
        return f"`{name}` is a hint"
    return f"{_refused(name, effect)} is refused"


def _refused(name: str, effect: Refused) -> str:
    neutral = " or ".join(f"`{msgspec.json.encode(each).decode()}`" for each in effect.neutral)
    notes = [f"neutral {neutral}" if neutral else "", f"use `{effect.say}`" if effect.say else ""]
    text = "; ".join(filter(None, notes))
    return f"`{name}` ({text})" if text else f"`{name}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
