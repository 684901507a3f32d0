"""Models that cannot be served: one line that says why and what to do, before torch is imported."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyengine.demo import MODEL_PATH
from pyengine.errors import ModelLoadError
from pyengine.model.weights.mapped import safetensors
from pyengine.tokenizer import Tokenizer
from tests.cli.conftest import Run
from tests.folders import edit_json
from tests.programs import REPOSITORY

# A torch that is there and must not be imported.
NO_TORCH = "raise SystemExit('torch was imported')"
TWO_RANKS = ("--tensor-parallel", "2")


def changed(**fields: Any) -> Callable[[Path], None]:
    """Changes fields of config.json."""

    return lambda folder: edit_json(folder / "config.json", **fields)


def with_index(name: str) -> Callable[[Path], None]:
    """Puts an index with one shard of that name in place of the weights."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        index = {"weight_map": {"model.embed_tokens.weight": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


def renamed(name: str) -> Callable[[Path], None]:
    """Gives the weights another name."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / name)

    return change


def cut(folder: Path) -> None:
    """Cuts the weights off."""
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1000)


def text(name: str, content: str) -> Callable[[Path], None]:
    """Gives a file that content."""

    def write(folder: Path) -> None:
        (folder / name).write_text(content)

    return write


def spoiled_tokenizer(**token: Any) -> Callable[[Path], None]:
    """Adds a token of these fields to tokenizer.json."""

    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        spec = json.loads(path.read_text())
        spec["added_tokens"].append({**spec["added_tokens"][0], "id": 9000, **token})
        path.write_text(json.dumps(spec))

    return change


def deep_header(folder: Path) -> None:
    """Nests the header of the weights deeper than any reader goes."""
    header = f'{{"a":{DEEP}}}'.encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def pipe(folder: Path) -> None:
    """Puts a pipe, to which nothing is written, in place of config.json."""
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


PRECOMPILED = {"type": "Precompiled", "precompiled_charsmap": ""}
DEEP = "[" * 100_000 + "]" * 100_000

WRONG: list[tuple[Callable[[Path], None], str]] = [
    (with_index("../../../../etc/passwd"), "names a file outside the folder: '../../../../etc"),
    (with_index("/etc/passwd"), "names a file outside the folder: '/etc/passwd'"),
    (changed(rope_theta=float("nan")), "'rope_theta' must be a finite number above 0, not nan"),
    (changed(hidden_size=10**9), "'hidden_size' of 1000000000 is more than any model has"),
    (
        changed(quantization_config={"quant_method": "awq", "bits": 3}),
        "quantized weights with 'bits' of 3 are not supported",
    ),
    (changed(quantization_config={"quant_method": "hqq"}), "quantized by 'hqq' are not supported"),
    (changed(architectures=["RwkvForCausalLM"]), "'RwkvForCausalLM' is not supported"),
    (renamed("pytorch_model.bin"), "PyTorch's .bin files"),
    (renamed("model.gguf"), "GGUF files: give one of them as the model, such as "),
    (cut, "cannot read the weights in "),
    (deep_header, "cannot read the weights in "),
    (with_index("n" * 5000), "File name too long"),
    (pipe, "config.json: it is no file"),
    (text("config.json", "[]"), "config.json must hold a JSON object"),
    (text("config.json", DEEP), "cannot read "),
    (text("generation_config.json", DEEP), "cannot read "),
    (
        text("generation_config.json", f'{{"eos_token_id": {10**30}}}'),
        "'eos_token_id' is beyond any vocabulary",
    ),
    (spoiled_tokenizer(content="<odd>", id=2**24 + 1), "is beyond 16777216"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("spoil", "says"), WRONG)
@pytest.mark.parametrize("command", ["serve", "complete"])
def test_a_wrong_model_is_one_line(
    command: str, spoil: Callable[[Path], None], says: str, pyengine: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL_PATH, folder)
    spoil(folder)
    (tmp_path / "torch.py").write_text(NO_TORCH)
    # The engine of `serve` is a process of its own; two ranks are computed by torch.
    arguments = ("--port", "0") if command == "serve" else ("--prompt", "x", *TWO_RANKS)
    done = pyengine(command, "./model", *arguments, PYTHONPATH=f"{tmp_path}:{REPOSITORY}")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_context_beyond_the_models_is_one_line(pyengine: Run) -> None:
    done = pyengine("complete", "--prompt", "x", "--max-context", "9999999")
    assert done.returncode == 1
    assert done.stderr == (
        "Error: 'max_context' is 9999999, but the model was made for 2048 tokens\n"
    )


def test_odd_tokenizers(tmp_path: Path) -> None:
    """One at which tokenizers panics is refused, and an empty added token is none."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL_PATH, folder)
    spoiled_tokenizer(content="")(folder)
    assert "" not in Tokenizer.from_folder(folder).added_tokens
    edit_json(folder / "tokenizer.json", normalizer=PRECOMPILED)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is no tokenizer: Precompiled"):
        Tokenizer.from_folder(folder)


def test_weights_at_odd_places_are_read(tmp_path: Path) -> None:
    header = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}}'
    values = np.array([1.5, -2.0], np.float32)
    file = len(header).to_bytes(8, "little") + header + b"\0" + values.tobytes()
    (tmp_path / "x.safetensors").write_bytes(file)
    read = safetensors(tmp_path / "x.safetensors")["x"]
    assert read.flags.aligned
    assert read.tolist() == values.tolist()
