"""What it takes to add a feature that gives something back: it is added to a copy, and counted."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.feature_cost import add_feature
from tests.programs import REPOSITORY

MOST = 11

USE = """
import msgspec
import pyengine
from pyengine.completion import Completion
from pyengine.messages import Submit, encode_extensions
from pyengine.model import batch, simulated
from pyengine.request.features import marks
from pyengine.request.features.registry import answer_parts, receive
from pyengine.request.options import RequestOptions

assert pyengine.__file__.startswith({root!r}), pyengine.__file__
asked = marks.FEATURE.ask(None, RequestOptions(mark=7))
submit = Submit(
    key=None, tokens=b"", prompt_length=0, max_tokens=1, sampling=b"", skip_special_tokens=True,
    arrival_ns=0, extensions=encode_extensions([asked]),
)
parts = answer_parts(submit, lambda token: b"")
for mark in (7, 8):
    receive(parts, "mark", msgspec.msgpack.encode([mark]))
fields = parts["marks"].completion()
assert Completion("", [], "stop", None, None, None, **fields).marks == [7, 8]
"""


def test_feature_with_output_touches_at_most_11_product_files(tmp_path: Path) -> None:
    touched = add_feature(tmp_path)
    different = {
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if path.suffix in (".py", ".pyi", ".rs", ".toml")
        and not _is_same(path, REPOSITORY / path.relative_to(tmp_path))
    }
    assert different == touched
    assert len(touched) <= MOST, sorted(touched)


def _is_same(path: Path, other: Path) -> bool:
    return other.exists() and path.read_bytes() == other.read_bytes()


def test_number_of_files_is_the_one_of_the_guide(tmp_path: Path) -> None:
    guide = (REPOSITORY / "CONTRIBUTING.md").read_text()
    assert f"| a feature that gives something back | {len(add_feature(tmp_path))} |" in guide


def test_python_half_of_a_feature_works_in_its_place(tmp_path: Path) -> None:
    add_feature(tmp_path)
    use = USE.format(root=str(tmp_path))
    subprocess.run([sys.executable, "-c", use], cwd=tmp_path, check=True, timeout=60)


@pytest.mark.slow
def test_rust_half_of_a_feature_compiles(tmp_path: Path) -> None:
    add_feature(tmp_path)
    target = REPOSITORY / "target"
    check = ["cargo", "check", "--offline", "--quiet", "-p", "pyengine-scheduler"]
    subprocess.run([*check, "--target-dir", target], cwd=tmp_path, check=True, timeout=600)
