"""A package outside adds a family: a function from config.json to traits, and an entry point."""

import sys
from pathlib import Path

import pytest

from pyengine.errors import ModelLoadError
from pyengine.model.architectures import find_architecture
from tests.folders import edit_json
from tests.model.llamas import Loop, make_llama, make_runner, prompts

FAMILY = """
from pyengine.model.architectures.decoder import decoder
from pyengine.model.architectures.reading import common, number
from pyengine.model.architectures.traits import Traits

def louder(config):
    return Traits(logits_scale=number(config, "loudness", 1.0), **common(config))

build = decoder(louder)
"""


def install(site: Path, name: str, value: str, module: str) -> None:
    """What `pip install` leaves of a package with an entry point."""
    (site / "louder.py").write_text(module)
    about = site / "louder-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: louder\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[pyengine.architectures]\n{name} = {value}\n")


def test_a_package_adds_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, site = tmp_path / "model", tmp_path / "site"
    site.mkdir()
    make_llama(model)
    asked = prompts(3)
    expected = Loop(make_runner(model)).generate(asked, 8)
    edit_json(model / "config.json", architectures=["LouderForCausalLM"], loudness=2.0)
    with pytest.raises(ModelLoadError, match="'LouderForCausalLM' is not supported"):
        make_runner(model)
    install(site, "LouderForCausalLM", "louder:build", FAMILY)
    monkeypatch.syspath_prepend(site)
    assert Loop(make_runner(model)).generate(asked, 8) == expected
    sys.modules.pop("louder")


def test_a_package_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "BrokenForCausalLM", "louder:build", "raise RuntimeError('no luck')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelLoadError, match=r"'louder:build' cannot be imported: .* no luck"):
        find_architecture("BrokenForCausalLM")
