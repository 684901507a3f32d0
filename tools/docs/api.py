"""``docs/API.md``: every field of every request, made of the types that decode requests and of the
table of fields. ``python -m tools.docs.api`` writes it; a test holds the two together.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from pyengine.http.fields.effects import Alias, Effects, Hint, Refused
from pyengine.http.fields.table import table
from pyengine.http.operations.meanings import Meanings, structs_within
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

A name has one effect, in requests and in objects within them, wherever it is not honoured. Where
several fields are named, the first that the request or the object has is meant.
"""
EXCEPTIONS = """## Exceptions

Requests and objects in which some names have another effect.
"""


def page() -> str:
    """The page."""
    made = [HEAD]
    requests = _requests()
    meanings = Meanings(requests)
    for (method, path), operation in _generating():
        made.append(f"## {method} {path}\n\n{operation.summary}\n")
        made.append(_honoured(operation.request, meanings))
    made.append("# Objects within requests\n")
    within = {kind for request in requests for kind in structs_within(request)} - set(requests)
    made += [
        f"## {kind.__name__}\n\n{_about(kind)}\n\n{_honoured(kind, meanings)}"
        for kind in sorted(within, key=lambda kind: kind.__name__)
        if kind.__struct_fields__
    ]
    rules = dict(table())
    made += [OTHERS, *(f"- {line}." for line in _rules(rules.pop(msgspec.Struct))), "", EXCEPTIONS]
    exceptions = sorted((kind.__name__, "; ".join(_rules(rules[kind]))) for kind in rules)
    made += [f"- {name}: {told}." for name, told in exceptions]
    return "\n".join(made) + "\n"


def _requests() -> list[Any]:
    return list(dict.fromkeys(operation.request for _, operation in _generating()))


def _generating() -> list[tuple[tuple[str, str], Operation]]:
    """The operations that take a body, but for those of administrators."""
    return [
        ((method, path), operation)
        for path, methods in operations().items()
        for method, operation in methods.items()
        if operation.request is not None and not path.startswith("/admin")
    ]


def _about(kind: type[msgspec.Struct]) -> str:
    return (kind.__doc__ or "").strip().split("\n\n")[0].replace("\n   ", "").replace("``", "`")


def _honoured(kind: type[msgspec.Struct], meanings: Meanings) -> str:
    """A table of the fields that a type has."""
    info: Any = inspect.type_info(kind)
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field in info.fields:
        words = meanings.of(kind, field.encode_name) or ""
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


def _rules(effects: Effects) -> list[str]:
    """What becomes of fields that no type has, those with the same effect together."""
    names: dict[str, list[str]] = {}
    for name, effect in sorted(effects.items()):
        names.setdefault(_effect(effect), []).append(f"`{name}`")
    return sorted(f"{what}: {', '.join(named)}" for what, named in names.items())


def _effect(effect: Alias | Hint | Refused) -> str:
    if isinstance(effect, Hint):
        return "hints"
    if isinstance(effect, Alias):
        return f"other names of {_either(effect.of)}"
    neutral = " or ".join(f"`{msgspec.json.encode(each).decode()}`" for each in effect.neutral)
    but = f", but for {neutral}" if neutral else ""
    return f"refused{but}" + (f" (use {_either(effect.say)})" if effect.say else "")


def _either(names: str) -> str:
    return " or ".join(f"`{name}`" for name in names.split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
