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
