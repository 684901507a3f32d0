"""An extension of griffe: docstrings as Markdown.

Docstrings of this project mark names as Sphinx does (``:class:`Engine```) and begin examples with
two colons. Names that are documented become links, examples become blocks, and what an attribute
has when nothing is given stands behind its description.
"""

import ast
import re
import textwrap
from pathlib import Path
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|meth|func|attr|data|mod|exc):`~?([\w.]+)`")
EXAMPLE = re.compile(
    r"^(?P<indent> *)(?P<before>\S.*?)?::\n\n(?P<code>(?:(?P=indent) {4}.*\n?|\n)+)", re.MULTILINE
)
ITEM = re.compile(r"^    (\w+): ")
PUBLIC = {
    element.value
    for node in ast.parse(Path("pyengine/__init__.py").read_text("utf-8")).body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    for element in ast.walk(node.value)
    if isinstance(element, ast.Constant)
}


def linked(text: str, home: str | None) -> str:
    """``text`` with its roles as links, where there is something to link to."""

    def link(role: re.Match[str]) -> str:
        *owners, last = role[1].removeprefix("pyengine.").split(".")
        if last in PUBLIC:
            return f"[`{last}`][pyengine.{last}]"
        owner = next((o for o in owners if o in PUBLIC), None)
        if owner is not None:
            return f"[`{owner}.{last}`][pyengine.{owner}.{last}]"
        if role[0].startswith(":meth:") and home in PUBLIC and not owners:
            return f"[`{last}`][pyengine.{home}.{last}]"
        return f"`{role[1]}`"

    return ROLE.sub(link, text)


def fenced(text: str) -> str:
    """``text`` with examples in fences."""

    def fence(example: re.Match[str]) -> str:
        indent, before = example["indent"], example["before"]
        code = textwrap.indent(textwrap.dedent(example["code"]).strip("\n"), indent)
        head = f"{indent}{before}:\n\n" if before else ""
        return f"{head}{indent}```python\n{code}\n{indent}```\n\n"

    return EXAMPLE.sub(fence, text + "\n").rstrip()


def with_defaults(text: str, owner: griffe.Class) -> str:
    """``text`` with the default of each attribute behind its description."""
    lines, name, made = [*text.split("\n"), ""], None, []
    inside = False
    for line in lines:
        item = ITEM.match(line)
        if name is not None and (item or not line.startswith("        ")):
            made[-1] += f" Default: `{owner.attributes[name].value}`."
            name = None
        if line == "Attributes:":
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        if inside and item and item[1] in owner.attributes:
            attribute = owner.attributes[item[1]]
            name = item[1] if attribute.value is not None and attribute.annotation else None
        made.append(line)
    return "\n".join(made).rstrip()


class Docstrings(griffe.Extension):
    """Rewrites each docstring of pyengine."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object once its docstring is read."""
        if obj.docstring is None:
            return
        owner = obj if obj.is_class else obj.parent
        text = fenced(linked(obj.docstring.value, owner.name if owner else None))
        obj.docstring.value = text

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called once the attributes of a class are read."""
        if cls.docstring is not None:
            cls.docstring.value = with_defaults(cls.docstring.value, cls)
