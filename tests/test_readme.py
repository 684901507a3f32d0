"""README.md and the guides tell the truth: their blocks run against a served demo model, and the
tables are the code's.

Blocks of ``bash`` and ``python`` run, those of ``console`` do not. A block of ``text`` right behind
one has lines that are in its output. ``make`` commands are run by CI; here it is only checked that
they exist.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyengine._core import PROPOSERS
from pyengine.cli import main
from pyengine.http.operations.paths import routes
from tests.programs import REPOSITORY, environment, free, served
from tools.docs.settings import KEYWORDS, PAGE, keywords, page

README = (REPOSITORY / "README.md").read_text()
GENERATED = ("reference/cli.md", "../reference/cli.md")  # by tools/docs/pages.py
PORT = 8000  # the one that README names
PAGES = (
    REPOSITORY / "README.md",
    REPOSITORY / "docs" / "index.md",
    *sorted((REPOSITORY / "docs" / "guides").glob("*.md")),
)
BLOCK = re.compile(
    r"^```(bash|python)\n(?!make )(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
RUN = [
    pytest.param(*block.groups(), id=f"{page.stem}-{block[2].splitlines()[0]}")
    for page in PAGES
    for block in BLOCK.finditer(page.read_text())
]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where the demo model is served: README's port, or another if that is taken."""
    # Several processes may run these tests, and ask at the same time whether it is free.
    first = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
    wanted = PORT if first and free(PORT) else 0
    with served("--port", str(wanted)) as server:
        yield int(server.url().rpartition(":")[2])


@pytest.fixture(scope="module")
def path_with_pyengine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the ``pyengine`` command of this interpreter."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "pyengine"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pyengine "$@"\n')
    command.chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("language", "code", "shown"), RUN)
def test_the_block_runs_and_answers(
    language: str,
    code: str,
    shown: str | None,
    port: int,
    path_with_pyengine: Path,
    tmp_path: Path,
) -> None:
    program = {"bash": ["bash", "-euc"], "python": [sys.executable, "-W", "error", "-c"]}[language]
    env = environment()
    done = subprocess.run(
        [*program, re.sub(rf":{PORT}\b", f":{port}", code)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env | {"PATH": f"{path_with_pyengine}:{env['PATH']}"},
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if shown is not None:
        for line in shown.splitlines():
            assert line in done.stdout
    elif "capital of France" in code:
        questions = len(
            re.findall(r"completions\.create|curl|engine\.chat|pyengine complete", code)
        )
        assert questions
        assert done.stdout.count("Paris") >= questions
    else:
        assert done.stdout.strip()
    if "class Person" in code:
        assert done.stdout == "Person(name='Anna', age=31)\n"


def test_make_commands_are_targets() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    asked = set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.MULTILINE))
    assert asked >= {"serve", "test", "setup", "bench"}
    for target in asked:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize(
    "page", [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")], ids=lambda p: p.name
)
def test_links_lead_to_files(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert "://" in link or (page.parent / link).exists() or link in GENERATED, link


def test_the_commands_are_those_of_the_command_line() -> None:
    assert set(re.findall(r"^\| `pyengine ([\w-]+)", README, re.MULTILINE)) == set(main.commands)


def test_the_settings_are_those_of_the_configuration() -> None:
    again = "run: .venv/bin/python -m tools.docs.settings"
    assert PAGE.read_text(encoding="utf-8") == page(), again
    assert KEYWORDS.read_text(encoding="utf-8") == keywords(), again


def test_the_proposers_are_those_of_the_engine() -> None:
    guide = (REPOSITORY / "docs" / "guides" / "speculation.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE) == list(PROPOSERS)


def test_the_endpoints_are_those_of_the_application() -> None:
    page = (REPOSITORY / "docs" / "reference" / "http.md").read_text()
    rows = re.findall(r"^\| `(GET|POST|DELETE) (/\S*)` \|", page, re.MULTILINE)
    served = routes().paths.items()
    assert {(method, path) for path, methods in served for method in methods} == set(rows)
