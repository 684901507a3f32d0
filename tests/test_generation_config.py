"""Sampling that a model's generation_config.json gives."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.cli.parameters import changed
from pyengine.errors import ModelLoadError
from pyengine.request.generation_config import GenerationConfig, generation_config, over
from tests.folders import edit_json

PROMPT = "The river"
TOKENS = 24


@pytest.fixture
def folder(tmp_path: Path, demo_model: Path) -> Path:
    """The demo model, whose makers want its most likely tokens."""
    shutil.copytree(demo_model, tmp_path / "model")
    says(tmp_path / "model", top_k=1, repetition_penalty=1.25)
    return tmp_path / "model"


def says(folder: Path, **values: Any) -> None:
    edit_json(folder / "generation_config.json", **values)


def test_file_sets_the_defaults(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    says(folder, temperature=0.6, top_k=-1, min_p=None, num_beams=1, suppress_tokens=[])
    found = generation_config(folder)
    assert found.params == SamplingParams(temperature=0.6, repetition_penalty=1.25)
    assert found.given == {"temperature": 0.6, "repetition_penalty": 1.25}
    assert found.left_out == ()
    assert not caplog.records
    says(folder, no_repeat_ngram_size=3, max_new_tokens=99)
    with caplog.at_level(logging.WARNING):
        assert generation_config(folder).left_out == ("max_new_tokens", "no_repeat_ngram_size")
    assert "not honoured: max_new_tokens, no_repeat_ngram_size" in caplog.text
    (folder / "generation_config.json").unlink()
    assert generation_config(folder) == GenerationConfig()


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"top_p": "most"}, {"top_k": 1.5}])
def test_a_value_out_of_range_is_named(folder: Path, wrong: dict[str, Any]) -> None:
    says(folder, **wrong)
    with pytest.raises(ModelLoadError, match=f"'{next(iter(wrong))}'.*--generation-config none"):
        generation_config(folder)


def test_a_request_overrides() -> None:
    defaults = SamplingParams(temperature=0.6, top_k=20)
    assert over(defaults, {"top_k": 0}) == SamplingParams(temperature=0.6)
    assert changed(defaults, "top_k=0") == SamplingParams(temperature=0.6)


async def test_an_engine_samples_as_the_file_says(folder: Path) -> None:
    exact = SamplingParams(temperature=0, repetition_penalty=1.25, max_tokens=TOKENS)
    async with AsyncEngine(folder) as engine:
        assert engine.default_sampling_params == SamplingParams(top_k=1, repetition_penalty=1.25)
        expected = (await engine.generate(PROMPT, exact)).token_ids
        asked = (await engine.generate(PROMPT)).token_ids
        assert asked[:TOKENS] == expected
        talk = [{"role": "user", "content": "Hello!"}]
        assert (await engine.chat(talk)).text == (await engine.chat(talk)).text
        given = SamplingParams(temperature=0, max_tokens=TOKENS)
        assert (await engine.generate(PROMPT, given)).token_ids != expected
    async with AsyncEngine(folder, generation_config="none") as engine:
        assert engine.default_sampling_params == SamplingParams()
