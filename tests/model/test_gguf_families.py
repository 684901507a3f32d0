"""GGUF files of every architecture are the folders that they were made from."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from pyengine.errors import ModelLoadError
from pyengine.model.weights.folder import model_folder
from tests.model.ggufs import CASES, family_of, write
from tests.model.llamas import Loop, make_model, make_runner, prompts

QUICK = ("gemma3", "qwen35moe", "deepseek2")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in CASES]
)
def test_a_file_says_what_its_folder_says(case: str, tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "model.gguf"
    kind, changes = family_of(CASES[case])
    make_model(folder, kind, dtype="float16", **changes)
    write(folder, file, case)
    asked = prompts(3, longest=40)
    ours, theirs = (
        Loop(make_runner(each, num_blocks=900)).generate(asked, 8) for each in (file, folder)
    )
    assert ours == theirs


def test_missing_metadata_is_told(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "mamba2")
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"model\.gguf lacks metadata that files of 'mamba2'"):
        model_folder(str(file))
