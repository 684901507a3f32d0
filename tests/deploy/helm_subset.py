"""The part of Helm's template language that our chart keeps to, so that it can be checked without
Helm: values, ``if``/``else``, ``range``, ``with``, ``define``/``include``, and a few functions.

What it does not know is an error, so that the chart cannot leave the subset unnoticed.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

TOKEN = re.compile(r"(\{\{-?\s*(.*?)\s*-?\}\})", re.DOTALL)
WORD = re.compile(r'"[^"]*"|\S+')

Node = tuple[str, Any, Any, Any]
Nodes = list[Node]


def render(chart: Path, values: Mapping[str, Any], release: str = "test") -> list[dict[str, Any]]:
    """The objects of a chart, its values overridden by ``values``."""
    merged = overridden(yaml.safe_load((chart / "values.yaml").read_text()), values)
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text())
    scope = {
        "Values": merged,
        "Release": {"Name": release, "Namespace": "models"},
        "Chart": {"Name": metadata["name"], "AppVersion": metadata["appVersion"]},
    }
    defined: dict[str, Nodes] = {}
    texts = []
    for path in sorted((chart / "templates").iterdir()):
        nodes = parsed(path.read_text(), defined)
        if path.suffix == ".yaml":
            texts.append((path, nodes))
    objects = []
    for path, nodes in texts:
        text = "".join(pieces(nodes, scope, defined))
        try:
            objects += [each for each in yaml.safe_load_all(text) if each]
        except yaml.YAMLError as error:
            raise AssertionError(f"{path.name}: {error}\n{text}") from error
    return objects


def overridden(base: Any, values: Any) -> Any:
    """``base`` with ``values`` in its place, object by object."""
    if isinstance(base, dict) and isinstance(values, Mapping):
        return {**base, **{key: overridden(base.get(key), each) for key, each in values.items()}}
    return values


def parsed(text: str, defined: dict[str, Nodes]) -> Nodes:
    """The nodes of a template; what it defines goes into ``defined``."""
    root: Nodes = []
    stack: list[tuple[str, Nodes]] = [("", root)]
    at = 0
    for match in TOKEN.finditer(text):
        before = text[at : match.start()]
        if match[1].startswith("{{-"):
            before = before.rstrip()
        at = match.end()
        if match[1].endswith("-}}"):
            at += len(text[at:]) - len(text[at:].lstrip())
        stack[-1][1].append(("text", before, None, None))
        keyword, _, rest = match[2].partition(" ")
        if keyword in ("if", "range", "with"):
            node: Node = (keyword, rest, [], [])
            stack[-1][1].append(node)
            stack.append((keyword, node[2]))
        elif keyword == "define":
            body = defined[rest.strip('"')] = []
            stack.append(("define", body))
        elif match[2] == "else":
            stack.pop()
            stack.append(("else", stack[-1][1][-1][3]))
        elif match[2] == "end":
            stack.pop()
        else:
            stack[-1][1].append(("value", match[2], None, None))
    stack[-1][1].append(("text", text[at:], None, None))
    assert len(stack) == 1, "an action has no end"
    return root


def pieces(nodes: Nodes, scope: Any, defined: dict[str, Nodes]) -> Iterator[str]:
    """The text of nodes, where ``.`` is ``scope``."""
    for kind, what, body, otherwise in nodes:
        if kind == "text":
            yield what
            continue
        value = pipeline(what, scope, defined)
        if kind == "value":
            yield written(value)
        elif kind == "range":
            for each in value or ():
                yield from pieces(body, each, defined)
        else:
            inner = value if kind == "with" and value else scope
            yield from pieces(body if value else otherwise, inner, defined)


def pipeline(text: str, scope: Any, defined: dict[str, Nodes]) -> Any:
    """The value of functions that are joined by ``|``."""
    value: Any = None
    for number, stage in enumerate(text.split("|")):
        words = WORD.findall(stage)
        given = [] if number == 0 else [value]
        if len(words) == 1 and not given:
            value = looked_up(words[0], scope)
            continue
        name, arguments = words[0], [looked_up(word, scope) for word in words[1:]] + given
        if name == "include":
            value = "".join(pieces(defined[arguments[0]], arguments[1], defined))
        else:
            value = FUNCTIONS[name](*arguments)
    return value


def looked_up(word: str, scope: Any) -> Any:
    """A literal, or a field of ``.``; a field that is not there is an error."""
    if word.startswith('"'):
        return word[1:-1]
    if not word.startswith("."):
        return int(word)
    for name in filter(None, word.split(".")):
        scope = scope[name]
    return scope


def written(value: Any) -> str:
    """A value as Go's templates write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nindent(width: int, text: str) -> str:
    return "".join(f"\n{' ' * width}{line}" if line else "\n" for line in text.splitlines())


FUNCTIONS: dict[str, Any] = {
    "add": lambda *numbers: sum(numbers),
    "nindent": _nindent,
    "not": lambda value: not value,
    "quote": lambda value: f'"{written(value)}"',
    "toYaml": lambda value: yaml.safe_dump(value, sort_keys=False).rstrip(),
}
