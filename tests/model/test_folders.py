"""Folders as people have them: what is no model is told as what it is, and other files are read."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import FalconConfig, GPTNeoXConfig, OPTConfig, Qwen3Config

from pyengine.errors import ModelLoadError
from pyengine.model.architectures import ARCHITECTURES, find_architecture
from pyengine.model.spec import describe
from pyengine.model.weights.gguf.choice import chosen_files
from pyengine.settings.config import EngineConfig
from tests.model.llamas import Loop, make_llama, make_model, make_runner, prompts


def refusal(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as refused:
        make_runner(folder)
    return str(refused.value)


def write(folder: Path, **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        stem, _, kind = name.rpartition("_")
        (folder / f"{stem}.{kind}").write_text(json.dumps(content))
    return folder


def test_folder_that_is_no_model_is_told_as_what_it_is(tmp_path: Path) -> None:
    assert f"{write(tmp_path / 'none')} is empty" in refusal(tmp_path / "none")
    adapter = write(tmp_path / "a", adapter_config_json={"base_model_name_or_path": "o/base"})
    assert "is an adapter (LoRA) and no model: give the model that it adapts, 'o/base'" in refusal(
        adapter
    )
    cached = tmp_path / "models--o--n"
    (cached / "snapshots").mkdir(parents=True)
    assert "is of the hub's cache: give the name, o/n, in its place" in refusal(cached)
    sentences = write(tmp_path / "s", modules_json=[])
    write(sentences / "0_Transformer", config_json={})
    assert f"but {sentences / '0_Transformer'} has: give that folder" in refusal(sentences)
    ggufs = write(tmp_path / "g")
    (ggufs / "m.gguf").write_bytes(b"GGUF")
    assert f"GGUF files: give one of them, such as {ggufs / 'm.gguf'}" in refusal(ggufs)
    assert "Mistral's own format" in refusal(write(tmp_path / "m", params_json={}))
    assert "has no config.json, but notes.json" in refusal(write(tmp_path / "n", notes_json={}))


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    make_llama(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.unlink()
    weights.symlink_to(tmp_path / "blobs" / "gone")
    assert "has links to files that are not there: model.safetensors" in refusal(tmp_path)
    weights.unlink()
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    said = refusal(tmp_path)
    assert "has pointers of Git LFS in the place of files: model.safetensors" in said
    assert "git lfs pull" in said
    weights.unlink()
    assert "has no weights" in refusal(tmp_path)


@pytest.mark.parametrize("given", [None, [], "LlamaForCausalLM", ["LlamaForCausalLM"]])
def test_architecture_may_be_missing_or_a_string(given: Any, tmp_path: Path) -> None:
    make_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": given}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert describe(EngineConfig(model=str(tmp_path))).info.architecture == "LlamaForCausalLM"


def test_weights_may_have_any_name_and_no_index(tmp_path: Path) -> None:
    make_llama(tmp_path)
    asked = prompts(2, longest=9)
    expected = Loop(make_runner(tmp_path)).generate(asked, 4)
    whole = tmp_path / "model.safetensors"
    tensors = load_file(whole)
    whole.unlink()
    half = dict(list(tensors.items())[::2])
    save_file(half, tmp_path / "one.safetensors")
    save_file({n: t for n, t in tensors.items() if n not in half}, tmp_path / "two.safetensors")
    save_file(tensors, tmp_path / "consolidated.safetensors")
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    assert Loop(make_runner(tmp_path)).generate(asked, 4) == expected
    save_file(half, tmp_path / "three.safetensors")
    assert "and in another file: leave one model's files" in refusal(tmp_path)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_names_may_stand_behind_what_training_put_there(prefix: str, tmp_path: Path) -> None:
    make_llama(tmp_path)
    asked = prompts(2, longest=9)
    expected = Loop(make_runner(tmp_path)).generate(asked, 4)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({prefix + n: t for n, t in tensors.items()}, tmp_path / "model.safetensors")
    assert Loop(make_runner(tmp_path)).generate(asked, 4) == expected


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (GPTNeoXConfig, {"num_attention_heads": 6}),
        (OPTConfig, {"ffn_dim": 72, "word_embed_proj_dim": 48}),
        (FalconConfig, {"multi_query": True}),
        (Qwen3Config, {"head_dim": 8}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_body_that_was_saved_without_its_head(kind: Any, changes: Any, tmp_path: Path) -> None:
    """It gives vectors; where its head is the table of tokens, logits of the whole model, too."""
    model = make_model(tmp_path / "whole", kind, **changes, tie_word_embeddings=True)
    model.base_model.save_pretrained(tmp_path / "body")
    asked = prompts(2, longest=9)
    (body,) = json.loads((tmp_path / "body/config.json").read_text())["architectures"]
    assert body.endswith("Model")
    expected = Loop(make_runner(tmp_path / "whole")).generate(asked, 4)
    assert Loop(make_runner(tmp_path / "body")).generate(asked, 4) == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Dots3NoteForCausalLM", "it needs another latent attention"),
        ("RwkvForCausalLM", "it needs other layers with a recurrent state"),
        ("MiMoV2FlashForCausalLM", "it needs values of another width than keys"),
        ("BertForMaskedLM", "it is an encoder, or reads one"),
        ("XLMRobertaModel", "it is an encoder, or reads one"),
        ("T5ForConditionalGeneration", "it is an encoder, or reads one"),
        ("LlamaForTokenClassification", "of its family, these are served: LlamaForCausalLM"),
        ("LLaMAForCausalLM", "names near it: LlamaForCausalLM"),
        ("Strange", "there is no part for its layers; docs/MODELS.md"),
    ],
)
def test_refusal_names_the_architecture_and_what_is_missing(name: str, said: str) -> None:
    with pytest.raises(ModelLoadError) as refused:
        find_architecture(name)
    message = str(refused.value)
    assert f"architecture {name!r} is not supported" in message
    assert said in message
    assert sum(each in message for each in ARCHITECTURES) <= 3
    assert len(message) < 300


def test_gguf_file_is_chosen_by_its_type_or_name() -> None:
    names = [
        "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "big/m-Q8_0-00001-of-00002.gguf",
        "big/m-Q8_0-00002-of-00002.gguf", "mmproj-Q4_K_M.gguf", "README.md",
    ]  # fmt: skip

    def chosen(wanted: str) -> list[str]:
        return chosen_files("o/m", names, wanted)

    assert chosen("q4_k_m") == ["m-Q4_K_M.gguf"]
    assert chosen("m-Q4_K_S.gguf") == ["m-Q4_K_S.gguf"]
    assert chosen("Q8_0") == names[2:4]
    for wanted in ("Q4_K", "Q2_K"):
        with pytest.raises(ModelLoadError, match=r"no GGUF file of .* there are: "):
            chosen(wanted)
    with pytest.raises(ModelLoadError, match="several files of 'F16'"):
        chosen_files("o/m", ["a-F16.gguf", "b-F16.gguf"], "F16")
