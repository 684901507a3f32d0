"""Rust's crates depend one way, and the files of a crate form no circles but those named here."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.programs import REPOSITORY

# From the top: a crate depends on what stands below its own line.
LAYERS = (
    ("core",),
    ("draft-passes",),
    ("grammar-compiler", "scheduler"),
    ("detokenizer", "grammar"),
    ("kv-allocator", "mailbox", "messages", "speculation", "telemetry"),
    ("base", "chat-template", "json-schema-normal-form", "kernels-cpu"),
)
HEIGHT = {crate: -line for line, crates in enumerate(LAYERS) for crate in crates}

# Circles of files that are still to be opened. Each is the set of its files below the crate's src.
KNOWN_CIRCLES: dict[str, list[set[str]]] = {
    "draft-passes": [{"tests/device.rs", "tests/mod.rs", "tests/world.rs"}],
    "scheduler": [
        {
            "simulation/device.rs", "simulation/outcome.rs", "simulation/row.rs",
            "simulation/states.rs",
        },
        {"simulation/streams.rs", "simulation/world.rs"},
    ],
}  # fmt: skip


def crates() -> dict[str, Path]:
    """The folder of each crate by its name, without the project's prefix."""
    folders = [path.parent for path in sorted(REPOSITORY.glob("rust/*/Cargo.toml"))]
    found = {}
    for folder in (*folders, REPOSITORY / "kernels/cpu"):
        name = tomllib.loads((folder / "Cargo.toml").read_text())["package"]["name"]
        found[name.removeprefix("pyengine-")] = folder
    return found


CRATES = crates()


def test_crates_depend_on_those_below_them() -> None:
    assert CRATES.keys() == HEIGHT.keys()
    upwards = [
        f"{crate} depends on {other}"
        for crate, folder in CRATES.items()
        for name in tomllib.loads((folder / "Cargo.toml").read_text()).get("dependencies", {})
        if (other := name.removeprefix("pyengine-")) in HEIGHT and HEIGHT[crate] <= HEIGHT[other]
    ]
    assert not upwards, "\n".join(upwards)


def test_no_crate_is_larger_than_13000_lines() -> None:
    for crate, folder in CRATES.items():
        lines = sum(len(path.read_text().splitlines()) for path in folder.rglob("*.rs"))
        assert lines <= 13_000, f"{crate} has {lines} lines"


def module_of(path: Path, src: Path) -> tuple[str, ...]:
    """The module that a file is, as a path from the crate's root."""
    parts = path.relative_to(src).with_suffix("").parts
    return () if parts == ("lib",) else parts[:-1] if parts[-1] == "mod" else parts


def used_paths(text: str) -> Iterator[list[str]]:
    """The paths of all ``use`` declarations that do not only export, groups spread out."""
    declaration = r"^([ \t]*)(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);"
    for indent, is_export, tree in re.findall(declaration, text, re.M):
        if is_export.strip() == "pub":  # an export depends on nothing
            continue
        for path in spread(re.sub(r"\s+as\s+\w+|\s+", "", tree)):
            # Within a module of the file, which a macro makes, `super` is the file.
            yield path[1:] if indent and path[0] == "super" else path


def spread(tree: str) -> Iterator[list[str]]:
    """The paths of one tree of a ``use`` declaration."""
    head, brace, rest = tree.partition("{")
    if not brace:
        yield tree.split("::")
        return
    depth, start, inner = 0, 0, rest.removesuffix("}")
    for at, sign in enumerate(inner + ","):
        depth += (sign == "{") - (sign == "}")
        if sign == "," and depth == 0:
            if branch := inner[start:at]:
                yield from spread(head + branch)
            start = at + 1


def dependencies(src: Path) -> dict[str, set[str]]:
    """For each file of a crate the others that it uses; tests within a file count as the file."""
    files = {module_of(path, src): path for path in src.rglob("*.rs")}
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        own = str(path.relative_to(src))
        found[own] = set()
        text = re.sub(r"//[^\n]*", "", path.read_text())
        outside = re.split(r"^#\[cfg\(test\)\]\nmod \w+ \{", text, maxsplit=1, flags=re.M)[0]
        for used in used_paths(outside):
            base: tuple[str, ...] = module
            names = used
            if used[0] == "crate":
                base, names = (), used[1:]
            elif used[0] in ("self", "super"):
                while names and names[0] in ("self", "super"):
                    base, names = (base[:-1] if names[0] == "super" else base), names[1:]
            elif (*module, used[0]) not in files:
                continue
            target = base
            while names and (*target, names[0]) in files:
                target, names = (*target, names[0]), names[1:]
            if target != module and target in files:
                found[own].add(str(files[target].relative_to(src)))
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected parts of more than one file (Tarjan, 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    parts = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                parts.append(set(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return parts


def test_spread_reads_groups_within_groups() -> None:
    paths = ["::".join(path) for path in spread("a::{b,c::{d,e},f}")]
    assert paths == ["a::b", "a::c::d", "a::c::e", "a::f"]


def test_circle_of_three_files_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
    assert circles(graph) == [{"a", "b", "c"}]


def test_files_of_a_crate_form_only_the_circles_that_are_known() -> None:
    found = {crate: circles(dependencies(folder / "src")) for crate, folder in CRATES.items()}
    for crate, parts in found.items():
        known = KNOWN_CIRCLES.get(crate, [])
        new = [sorted(part) for part in parts if not any(part <= old for old in known)]
        assert not new, f"{crate}: {new}"
    for crate, known in KNOWN_CIRCLES.items():
        gone = [sorted(old) for old in known if not any(part <= old for part in found[crate])]
        assert not gone, f"{crate}: no circle any more: {gone}"
