"""Models by their hub names, from a hub on this machine: revisions, tokens, caches, breaks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyengine.errors import ModelLoadError
from pyengine.model.weights.folder import served_name
from pyengine.model.weights.hub import is_hub_name, refusal_of_bin
from tests.fake_hub import FakeHub, commit, fake_hub
from tests.models import random_llama

FETCH = """
import json, logging, sys
from pyengine.model.weights.folder import fetched
from pyengine.settings.config import EngineConfig
logging.basicConfig(level="INFO", format="%(name)s: %(message)s")
logging.getLogger("httpx2").setLevel("WARNING")
told = []
try:
    config = fetched(EngineConfig({settings}), lambda *at: told.append(at))
except Exception as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
print(json.dumps([config.model, config.served_name, told]))
"""
PIECE = 10 << 20  # bytes that huggingface_hub writes at once
SMALL = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("small")
    random_llama(made, **SMALL)
    return made


@pytest.fixture
def hub(folder: Path) -> Iterator[FakeHub]:
    with fake_hub() as hub:
        hub.add("owner/small", folder)
        yield hub


def fetch(hub: FakeHub, home: Path, model: str, **variables: str) -> tuple[Any, str]:
    """What :data:`FETCH` printed, and what it logged; its last words, if it failed."""
    done = hub.run(FETCH.format(settings=f"model={model!r}"), home, **variables)
    return (json.loads(done.stdout) if done.returncode == 0 else None), done.stderr


def test_names() -> None:
    for name in ("owner/name", "owner/name@main", "owner/name@refs/pr/7", "Qwen/Qwen3-0.6B"):
        assert is_hub_name(name), name
    for name in ("name", "./owner/name", "/owner/name", "~/name", "a/b/c", "a/b/c@main"):
        assert not is_hub_name(name), name
    assert served_name("owner/name@v1.0") == "owner/name"
    assert served_name("owner/name@v1.0:Q4_K_M") == "owner/name:Q4_K_M"


def test_files_come_once_with_progress_and_what_breaks_goes_on(
    hub: FakeHub, tmp_path: Path
) -> None:
    size = 2 * PIECE + 1
    hub.files["owner/small", commit("main"), "model.safetensors"] = bytes(size)
    hub.breaks["model.safetensors"] = PIECE + PIECE // 2
    (model, names, told), log = fetch(hub, tmp_path, "owner/small")
    assert Path(model).name == commit("main")
    assert (Path(model) / "model.safetensors").stat().st_size == size
    assert names == ["owner/small"]
    assert told[-1] == [size, size]
    assert all(0 <= done <= of == size for done, of in told)
    assert hub.downloads("model.safetensors") == [None, f"bytes={PIECE}-"]
    assert f"pyengine: fetching 1 files of owner/small at {commit('main')[:12]}" in log
    assert "pyengine: fetched model.safetensors, 20.0 MiB: 1 of 1 files" in log
    asked = len(hub.asked)
    (again, _, told), log = fetch(hub, tmp_path, "owner/small")
    assert (again, told) == (model, [])
    assert "fetch" not in log
    assert hub.downloads() == [at for method, _, at in hub.asked[:asked] if method == "GET"]


@pytest.mark.slow
def test_a_revision_and_the_cache_without_a_network(
    hub: FakeHub, folder: Path, tmp_path: Path
) -> None:
    hub.add("owner/small", folder, revision="v1")
    (model, names, _), _ = fetch(hub, tmp_path, "owner/small@v1")
    assert (Path(model).name, names) == (commit("v1"), ["owner/small"])
    hub.files.clear()  # whatever is asked for now is not there
    asked = len(hub.asked)
    offline = {"HF_HUB_OFFLINE": "1"}
    for name in ("owner/small@v1", f"owner/small@{commit('v1')}"):
        (again, _, _), _ = fetch(hub, tmp_path, name, **offline)
        assert again == model
    found, said = fetch(hub, tmp_path, "owner/small", **offline)
    assert found is None
    assert "'owner/small' is not a local folder, and cannot be downloaded from the hub" in said
    assert "HF_HUB_OFFLINE" in said
    assert len(hub.asked) == asked


@pytest.mark.slow
def test_a_token(hub: FakeHub, tmp_path: Path) -> None:
    hub.token = "secret"
    found, said = fetch(hub, tmp_path, "owner/small")
    assert found is None
    assert "ModelLoadError: 'owner/small'" in said
    assert "hf auth login" in said
    found, _ = fetch(hub, tmp_path, "owner/small", HF_TOKEN="secret")
    assert found is not None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("owner/small@v9", "there is no revision", marks=pytest.mark.slow),
        ("owner/other", "there is no such repository"),
    ],
)
def test_missing_repository_is_named(name: str, reason: str, hub: FakeHub, tmp_path: Path) -> None:
    found, said = fetch(hub, tmp_path, name)
    assert found is None
    assert repr(name) in said
    assert reason in said


REFUSE = """
import json, os
from pyengine.async_engine.checking import check_model
from pyengine.model.weights.folder import fetched
from pyengine.settings.config import EngineConfig
for name in json.loads(os.environ["NAMES"]):
    try:
        fetched(EngineConfig(model=name), lambda *at: None, check_model)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
"""
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"architectures": ["OtherForCausalLM"]}, "'OtherForCausalLM' is not supported"),
    "latent": ({"architectures": ["Dots3NoteForCausalLM"]}, "needs another latent attention"),
    "scheme": ({"quantization_config": {"quant_method": "bitsandbytes"}}, "'bitsandbytes'"),
    "numbers": ({"num_hidden_layers": -1}, "'num_hidden_layers' must be a positive integer"),
    "rope": ({"rope_parameters": {"rope_type": "other"}}, "other"),
}


def test_no_byte_of_weights_comes_before_a_refusal(hub: FakeHub, tmp_path: Path) -> None:
    config = json.loads(hub.files["owner/small", commit("main"), "config.json"])
    expected = {f"owner/{name}": said for name, (_, said) in REFUSED.items()}
    for name in expected:
        hub.files |= {(name, at, path): data for (_, at, path), data in hub.files.items()}
        changed = config | REFUSED[name.removeprefix("owner/")][0]
        hub.files[name, commit("main"), "config.json"] = json.dumps(changed).encode()
    without: dict[str, tuple[str, bytes, str]] = {
        "owner/no-tokenizer": ("tokenizer.json", b"", "tokenizer"),
        "owner/template": ("chat_template.jinja", b"{% if %}", "template is malformed"),
        "owner/adapter": ("config.json", b"", "is an adapter (LoRA) and no model"),
        "owner/listed": ("config.json", b"[]", "must hold a JSON object"),
    }
    for name, (path, data, said) in without.items():
        for (repository, at, other), content in list(hub.files.items()):
            if repository == "owner/small" and other != path:
                hub.files[name, at, other] = content
        if data:
            hub.files[name, commit("main"), path] = data
        expected[name] = said
    base = json.dumps({"base_model_name_or_path": "owner/small"}).encode()
    hub.files["owner/adapter", commit("main"), "adapter_config.json"] = base
    done = hub.run(REFUSE, tmp_path, NAMES=json.dumps(list(expected)))
    assert done.returncode == 0, done.stderr
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines() if "Error: " in line)
    assert {name: said in told.get(name, "") for name, said in expected.items()} == dict.fromkeys(
        expected, True
    ), told
    assert hub.downloads("model.safetensors") == []


@pytest.mark.slow
def test_files_of_other_models_stay_on_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    weights = hub.files.pop(("owner/small", commit("main"), "model.safetensors"))
    named = {"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    index = json.dumps(named).encode()
    hub.files |= {
        ("owner/small", commit("main"), path): data
        for path, data in {
            "model.safetensors.index.json": index,
            "x-1.safetensors": weights,
            "x-2.safetensors": weights + b" ",
            "flax-model.safetensors": weights,
            "adapter_model.safetensors": weights,
            "consolidated.safetensors": weights,
            "fp16/x-1.safetensors": weights,
        }.items()
    }
    fetch(hub, tmp_path, "owner/small")
    asked = {path for method, path, _ in hub.asked if method == "GET" and "safetensors" in path}
    assert asked == {"model.safetensors.index.json", "x-1.safetensors", "x-2.safetensors"}


@pytest.mark.slow
def test_a_gguf_file_by_the_type_of_its_weights(hub: FakeHub, tmp_path: Path) -> None:
    for name in ("s-Q4_K_M.gguf", "s-Q8_0.gguf", "mmproj-s-Q8_0.gguf"):
        hub.files["owner/s-gguf", commit("main"), name] = name.encode()
    (model, names, _), _ = fetch(hub, tmp_path, "owner/s-gguf:q8_0")
    assert Path(model).name == "s-Q8_0.gguf"
    assert Path(model).read_text() == "s-Q8_0.gguf"
    assert names == ["owner/s-gguf:q8_0"]
    assert {path for method, path, _ in hub.asked if method == "GET"} == {"s-Q8_0.gguf"}
    found, said = fetch(hub, tmp_path, "owner/s-gguf:Q3_K_L")
    assert found is None
    assert "no GGUF file of 'Q3_K_L'; there are: s-Q4_K_M.gguf, s-Q8_0.gguf" in said
    offline, _ = fetch(hub, tmp_path, "owner/s-gguf:Q8_0", HF_HUB_OFFLINE="1")
    assert offline[0] == model


def test_other_formats_are_refused_before_they_are_downloaded(hub: FakeHub, tmp_path: Path) -> None:
    weights = hub.files.pop(("owner/small", commit("main"), "model.safetensors"))
    hub.files["owner/small", commit("main"), "small-Q8_0.gguf"] = weights
    _, said = fetch(hub, tmp_path, "owner/small")
    assert "has GGUF files only: name one, such as owner/small:small-Q8_0.gguf" in said
    hub.files["owner/small", commit("main"), "pytorch_model.bin"] = weights
    _, said = fetch(hub, tmp_path, "owner/small")
    assert refusal_of_bin("owner/small").strip() in said
    assert hub.downloads() == []


@pytest.mark.slow
def test_a_draft_model_says_that_it_is_one(hub: FakeHub, tmp_path: Path) -> None:
    settings = "draft_model='owner/other', speculation=('draft_model',)"
    done = hub.run(FETCH.format(settings=settings), tmp_path)
    assert done.returncode == 1
    assert "ModelLoadError: the draft model: 'owner/other'" in done.stderr


@pytest.mark.slow
def test_dummy_weights_are_not_downloaded(hub: FakeHub, tmp_path: Path) -> None:
    done = hub.run(FETCH.format(settings="model='owner/small', load_format='dummy'"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert hub.downloads("config.json") == [None]
    assert hub.downloads("model.safetensors") == []


SERVE = """
import asyncio
from pyengine import AsyncEngine, SamplingParams
async def main():
    async with AsyncEngine("owner/small", placement="process") as engine:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        first = await engine.generate([1, 2, 3], params)
        await engine.sleep()
        await engine.wake_up()
        assert (await engine.generate([1, 2, 3], params)).token_ids == first.token_ids
        print(engine.model_name, engine.config.model)
if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.slow
def test_an_engine_that_is_started_again_has_the_same_files(hub: FakeHub, tmp_path: Path) -> None:
    done = hub.run(SERVE, tmp_path)
    assert done.returncode == 0, done.stderr
    name, _, model = done.stdout.strip().partition(" ")
    assert (name, Path(model).name) == ("owner/small", commit("main"))
    assert hub.downloads("model.safetensors") == [None]


@pytest.mark.slow
def test_the_command_in_the_refusal_of_bin_converts(folder: Path, tmp_path: Path) -> None:
    """That it says what it says is right: it is run."""
    import shlex
    import shutil
    import subprocess
    import sys

    import torch
    from safetensors.torch import load_file

    from pyengine.model.devices import load_runner
    from pyengine.settings.config import EngineConfig
    from tests.programs import environment

    source = tmp_path / "it's small"
    shutil.copytree(folder, source)
    tensors = load_file(source / "model.safetensors")
    torch.save(tensors, source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(ModelLoadError) as refused:
        load_runner(EngineConfig(model=str(source), device="cpu"))
    (line,) = [line for line in str(refused.value).splitlines() if "python -c" in line]
    words = shlex.split(line)
    assert words[:2] == ["python", "-c"]
    subprocess.run(
        [sys.executable, *words[1:]], cwd=tmp_path, env=environment(), check=True, timeout=100
    )
    made = tmp_path / "it's small-safetensors"
    converted = load_file(made / "model.safetensors")
    assert {name: tensor.tolist() for name, tensor in converted.items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }
    load_runner(EngineConfig(model=str(made), device="cpu")).close()
