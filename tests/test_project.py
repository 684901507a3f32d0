"""What a release, a commit and the reference rely on: the changelog's form, the check of commit
subjects, a place for each public name.
"""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import pyengine
from tests.programs import REPOSITORY


def test_the_version_has_its_section_in_the_changelog() -> None:
    cargo = tomllib.loads((REPOSITORY / "Cargo.toml").read_text())
    version = cargo["workspace"]["package"]["version"]
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    # As .github/workflows/release.yml looks for it.
    assert re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE)
    assert changelog.index("## [Unreleased]") < changelog.index(f"## [{version}]")


@pytest.mark.parametrize(
    ("subject", "fits"),
    [
        ("sampling: add typical_p", True),
        ("rust/engine: release blocks of failed steps", True),
        ("fixup! sampling: add typical_p", True),
        ("Add typical_p", False),
        ("sampling: add typical_p.", False),
        (f"sampling: {'x' * 80}", False),
    ],
)
def test_commit_subjects(subject: str, fits: bool, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_text(f"{subject}\n\nWhy.\n")
    script = REPOSITORY / "tools" / "commit_subject.sh"
    done = subprocess.run([script, message], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is fits, done.stderr


def test_every_public_name_is_in_the_reference() -> None:
    pages = (REPOSITORY / "docs" / "reference").glob("*.md")
    shown = {
        name.rpartition(".")[2]
        for page in pages
        for name in re.findall(r"^::: (pyengine[\w.]+)", page.read_text(), re.MULTILINE)
    }
    assert set(pyengine.__all__) <= shown


def test_every_installation_that_is_told_of_is_ours() -> None:
    """The name `pyengine` on PyPI is a stranger's."""
    name = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["name"]
    assert name == "pyengine-llm"
    places = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md"]
    for folder in ("docs", "deploy", "examples", "pyengine", ".github"):
        places += [path for path in (REPOSITORY / folder).rglob("*") if path.is_file()]
    told = []
    for path in places:
        if path.suffix in (".so", ".pyc") or "model" in path.parts:
            continue
        text = path.read_text(errors="replace")
        told += re.findall(r"pip install[^\n]*?(pyengine[\w-]*)", text)
        told += re.findall(r"(pyengine[\w-]*)\[(?:cuda|torch|otel|plot|router|ray)\]", text)
    assert len(told) > 10
    assert {each.replace("_", "-").rstrip("-") for each in told} == {name}
