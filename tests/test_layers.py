"""Imports go one way: each part of the package knows those below it, and none above.

Imports within functions and for type checkers count as any other.
"""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.programs import REPOSITORY, python

# From the top: a part imports what stands below its own line. A part is a module, or a folder with
# all that is in it but for what has a line of its own. docs/ARCHITECTURE.md says what each is for.
LAYERS = (
    ("__main__",),
    ("cli", "ray"),
    ("pyengine",),  # its public names
    ("library", "http.replicas", "http.ollama", "http.page"),
    ("http", "benchmark"),
    ("sync_engine", "profiling"),
    ("async_engine",),
    ("request.connection",),
    ("placement", "request.submission"),
    ("engine",),
    ("decisions",),
    ("chat", "model.devices"),
    ("actors", "distributed", "request"),
    ("model", "completion"),
    ("settings", "messages", "queues", "sampling"),
    ("distributed.group",),
    (
        "actors.actor", "actors.heartbeat", "demo", "grammar", "devices",
        "kernels", "logits_processors", "logprobs", "logs", "placement.children", "telemetry",
        "tokenizer", "validation",
    ),
    ("_core", "errors"),
)  # fmt: skip
# Parts that a reader of the engine may leave shut, and that a program may go without.
OPTIONAL = ("ray", "http.replicas", "http.ollama", "http.page")
COMMANDS = {"http.replicas": ("cli.replicas",)}

ALONE = """
import sys
sys.path.insert(0, ROOT)
import asyncio, httpx, pyengine
from pyengine.http import extensions

assert pyengine.__file__.startswith(ROOT), pyengine.__file__
extensions.BUILT_IN = ()

async def main():
    async with pyengine.AsyncEngine() as engine:
        transport = httpx.ASGITransport(pyengine.asgi_app(engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
            print((await client.post("/v1/chat/completions", json=body)).status_code)
            print((await client.get("/openapi.json")).status_code)

asyncio.run(main())
"""

HEIGHT = {part: -line for line, parts in enumerate(LAYERS) for part in parts}


def modules() -> dict[str, Path]:
    """Every module of the package by its name."""
    found = {"pyengine._core": REPOSITORY / "pyengine/_core.pyi"}
    for path in (REPOSITORY / "pyengine").rglob("*.py"):
        name = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imported(path: Path) -> Iterator[str]:
    """The modules of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are by full names"
            if node.module in MODULES:
                for name in node.names:
                    inner = f"{node.module}.{name.name}"
                    yield inner if inner in MODULES else node.module


IMPORTS = {name: set(imported(path)) - {name} for name, path in MODULES.items()}


def part_of(module: str) -> str:
    """Where a module stands in the table."""
    name = module.removeprefix("pyengine").removeprefix(".")
    while name:
        if name in HEIGHT:
            return name
        name = name.rpartition(".")[0]
    return "pyengine"


def test_nothing_imports_what_is_above_or_beside_it() -> None:
    upwards = [
        f"{module} imports {other}"
        for module, others in IMPORTS.items()
        for other in others
        if (mine := part_of(module)) != (theirs := part_of(other))
        and HEIGHT[mine] <= HEIGHT[theirs]
    ]
    assert not upwards, "\n".join(sorted(upwards))


def test_what_is_optional_is_imported_by_none_but_its_commands() -> None:
    for part in OPTIONAL:
        beside = (part, *COMMANDS.get(part, ()))
        for module, others in IMPORTS.items():
            if not module.removeprefix("pyengine.").startswith(beside):
                used = [other for other in others if other.startswith(f"pyengine.{part}")]
                assert not used, f"{module} imports {used}"


def test_only_the_list_of_extensions_names_an_optional_part() -> None:
    """An import by a string, which the other tests do not see."""
    for module, path in MODULES.items():
        name = module.removeprefix("pyengine.")
        strings = (
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        named = {
            part
            for text in strings
            for part in OPTIONAL
            if re.search(rf"(^|\W)pyengine\.{re.escape(part)}\b", text)
            and not name.startswith(part)
        }
        assert not named or name == "http.extensions", f"{module} names {named}"


def test_engine_and_endpoint_run_where_optional_parts_are_not_installed(tmp_path: Path) -> None:
    for folder in (REPOSITORY / "pyengine").rglob("*"):
        if folder.suffix in (".py", ".so", ".json"):
            name = ".".join(folder.relative_to(REPOSITORY / "pyengine").with_suffix("").parts)
            if not name.startswith(OPTIONAL):
                place = tmp_path / folder.relative_to(REPOSITORY)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(folder)
    assert python(f"ROOT = {str(tmp_path)!r}\n{ALONE}").split() == ["200", "200"]


def test_no_imports_go_in_a_circle() -> None:
    try:
        TopologicalSorter(IMPORTS).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_the_table_has_every_part_once() -> None:
    tops = {name.split(".")[1] for name in MODULES if "." in name}
    named = [part for parts in LAYERS for part in parts]
    assert len(named) == len(set(named))
    assert tops | {"pyengine"} == {part for part in named if "." not in part}
    assert {f"pyengine.{part}" for part in named if "." in part} <= set(MODULES)


def test_the_drawing_is_the_table() -> None:
    text = (REPOSITORY / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    drawing = text.partition("## Layers")[2].split("```")[1]
    lines = [re.split(r"  +", line)[0].split(", ") for line in drawing.strip().splitlines()]
    # The drawing leaves out the entry point, and the names of some small parts near the ground.
    assert len(lines) == len(LAYERS) - 1
    for drawn, parts in zip(lines, LAYERS[1:], strict=True):
        assert set(drawn) - {"..."} <= set(parts)
        assert "..." in drawn or set(drawn) == set(parts)


def test_every_file_that_the_map_names_is_there() -> None:
    text = (REPOSITORY / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| (`.*?) \|", text.partition("## Where things are")[2], re.M):
        first, *others = re.findall(r"`([^`]+)`", row)
        beside = (REPOSITORY / first).parent
        assert (REPOSITORY / first).exists(), first
        assert all((beside / name).exists() or (REPOSITORY / name).exists() for name in others), row
