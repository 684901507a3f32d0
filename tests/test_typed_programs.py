"""Type checkers take a user's programs, and find settings that are misspelt in them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import REPOSITORY, environment

PAGES = ("README.md", "docs/index.md", "docs/guides/embedding.md")
MISSPELT = """
import pyengine

pyengine.AsyncEngine(max_sequencs=3)
pyengine.Engine(mode="sever")
"""


def checked(folder: Path) -> str:
    """What mypy says of the programs of a folder; it reads the package as an installed one."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"),
            *("--allow-untyped-defs", "--allow-untyped-calls", "--config-file="),
            *("--cache-dir", REPOSITORY / ".mypy_cache" / "programs", folder),
        ],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(MYPYPATH=str(REPOSITORY)),
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_documented_programs_and_misspelt_settings(tmp_path: Path) -> None:
    for page in PAGES:
        text = (REPOSITORY / page).read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
            if "from openai" not in block:  # whose types are not the project's
                name = re.sub(r"\W", "_", page)
                (tmp_path / f"{name}_{number}.py").write_text(block)
    assert len(list(tmp_path.iterdir())) > 4
    (tmp_path / "misspelt.py").write_text(MISSPELT)
    errors = re.findall(r"^(.*): error: (.*)$", checked(tmp_path), re.MULTILINE)
    assert [where for where, _ in errors] == ["misspelt.py:4", "misspelt.py:5"], errors
    assert 'Unexpected keyword argument "max_sequencs"' in errors[0][1]
    assert "\"Literal['sever']\"" in errors[1][1]
