"""GGUF files: what types mean, and that models and tokenizers in them are those of folders."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaConfig, Phi3Config, Qwen2Config, Qwen3Config

from pyengine import AsyncEngine, SamplingParams
from pyengine.chat.template_source import TemplateSource
from pyengine.demo import MODEL_PATH
from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.positions import rotary_parameters
from pyengine.model.spec import describe
from pyengine.model.weights.folder import model_folder, served_name
from pyengine.model.weights.gguf.ends import end_token_ids
from pyengine.model.weights.gguf.file import GgufFile
from pyengine.model.weights.gguf.folder import tokenizer_config
from pyengine.model.weights.gguf.tensors import stored
from pyengine.model.weights.gguf.tokenizer import make_tokenizer
from pyengine.model.weights.gguf.types import TYPES
from pyengine.model.weights.loader import open_weights
from pyengine.settings.config import EngineConfig
from tests.model.ggufs import permuted
from tests.model.llamas import Loop, make_model, make_runner, prompts

FAMILIES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "llama": ("llama", LlamaConfig, {}),
    "llama, tied": ("llama", LlamaConfig, {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", Qwen2Config, {}),
    "qwen3": ("qwen3", Qwen3Config, {"head_dim": 16}),
    "phi3": ("phi3", Phi3Config, {"pad_token_id": None}),
}
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def random_blocks(kind: GGMLQuantizationType, rows: int, inputs: int) -> NDArray[np.uint8]:
    """Rows of any bytes, but whose scales are finite floats."""
    rng, (numbers, size) = np.random.default_rng(2), GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, inputs // numbers, size), np.uint8)
    own = {
        "Q2_K": [80, 82],
        "Q3_K": [108],
        "Q6_K": [208],
        "MXFP4": [],
        "TQ1_0": [52],
        "TQ2_0": [64],
    }
    two = kind.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
    for at in own.get(kind.name, [0, 2] if two else [0]):
        scales = rng.standard_normal(blocks.shape[:2]).astype(np.float16)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    if kind.name == "MXFP4":
        blocks[..., 0] = rng.integers(0, 200, blocks.shape[:2])  # the largest would be infinite
    return blocks


@pytest.mark.parametrize("number", [n for n, kind in TYPES.items() if kind.numbers > 1])
def test_a_type_means_what_gguf_says(number: int) -> None:
    kind, rows, inputs = GGMLQuantizationType(number), 5, 512
    blocks = random_blocks(kind, rows, inputs)
    assert TYPES[number].name == kind.name
    assert (TYPES[number].numbers, TYPES[number].nbytes) == GGML_QUANT_SIZES[kind]
    part = TYPES[number].read(blocks)
    theirs = signs(blocks) if kind.name == "Q1_0" else dequantize(blocks.reshape(rows, -1), kind)
    ours = part.dequantized()
    assert part.shape == (rows, inputs)
    if kind.name.startswith(("IQ1", "IQ2", "IQ3", "TQ")):
        assert np.allclose(ours, theirs, rtol=3e-7, atol=0)  # a scale of its own, rounded once
    else:
        assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    assert np.array_equal(part.columns(slice(256, 512)).dequantized(), ours[:, 256:])


def signs(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What Q1_0 means: a scale for 128 bits, of which each is a sign."""
    scales = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little")
    return (np.where(bits, scales, -scales)).reshape(len(blocks), -1)


def add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """What all architectures say of their shape."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rotary_parameters(config)["rope_theta"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])


def write(
    folder: Path,
    path: Path,
    architecture: str,
    types: dict[str, str],
    tokenizer: Path | None = None,
    tensors_a_file: int = 0,
) -> None:
    """A GGUF file of a folder's model, its matrices of these types by name, the others F16."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_a_file)
    add_shape(writer, config)
    tokens = [f"t{index}" for index in range(config["vocab_size"])]
    merges: list[str] = []
    token_types = [1] * len(tokens)
    if tokenizer is not None:
        made = json.loads((tokenizer / "tokenizer.json").read_text())
        named = json.loads((tokenizer / "tokenizer_config.json").read_text())
        for token, index in made["model"]["vocab"].items():
            tokens[index] = token
        for added in made["added_tokens"]:
            tokens[added["id"]], token_types[added["id"]] = added["content"], 3
        merges = [" ".join(merge) for merge in made["model"]["merges"]]
        writer.add_chat_template(named["chat_template"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(token_types)
    writer.add_token_merges(merges)
    eos = config["eos_token_id"]
    writer.add_eos_token_id(eos[0] if isinstance(eos, list) else eos)
    for name, tensor in load_file(folder / "model.safetensors").items():
        array, ((own_name,), _) = tensor.float().numpy(), stored(name)
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            array = permuted(
                array, config[f"num_{'attention' if 'q_' in name else 'key_value'}_heads"]
            )
        kind = types.get(own_name.split(".")[-2], "F16") if array.ndim > 1 else "F32"
        number = GGMLQuantizationType[kind]
        try:
            data = quantize(array, number)
        except NotImplementedError:
            data = random_blocks(number, *array.shape).reshape(len(array), -1)
        writer.add_tensor(own_name, data, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def made(tmp_path: Path, family: str, types: dict[str, str]) -> tuple[Path, Path]:
    """A folder, and a GGUF file of it."""
    architecture, kind, changes = FAMILIES[family]
    make_model(tmp_path / "folder", kind, dtype="float16", **SIZES | changes)
    write(tmp_path / "folder", tmp_path / "model.gguf", architecture, types)
    return tmp_path / "folder", tmp_path / "model.gguf"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_says_what_its_folder_says(family: str, tmp_path: Path) -> None:
    folder, file = made(tmp_path, family, {})
    assert served_name(str(file)) == "model"
    asked = prompts(3, longest=20)
    assert Loop(make_runner(file)).generate(asked, 6) == Loop(make_runner(folder)).generate(
        asked, 6
    )


def test_several_files_are_one_model(tmp_path: Path) -> None:
    folder, file = made(tmp_path, "llama", {"attn_q": "Q8_0"})
    write(folder, tmp_path / "split.gguf", "llama", {"attn_q": "Q8_0"}, tensors_a_file=8)
    parts = sorted(tmp_path.glob("split-*.gguf"))
    assert [part.name for part in parts] == [f"split-0000{at}-of-00003.gguf" for at in (1, 2, 3)]
    assert served_name(str(parts[0])) == "split"
    asked = prompts(3, longest=20)
    whole = Loop(make_runner(file)).generate(asked, 6)
    assert Loop(make_runner(parts[0])).generate(asked, 6) == whole
    with pytest.raises(ModelLoadError, match="one of several files: give the first"):
        model_folder(str(parts[1]))
    parts[2].rename(tmp_path / "away")
    with pytest.raises(ModelLoadError, match=r"lacks split-00003-of-00003\.gguf"):
        model_folder(str(parts[0]))
    parts[0].rename(tmp_path / "first.gguf")
    with pytest.raises(ModelLoadError, match="one of 3 files, which must be named"):
        model_folder(str(tmp_path / "first.gguf"))


def test_types_may_differ_within_a_file(tmp_path: Path) -> None:
    types = {"attn_q": "Q4_0", "attn_k": "Q8_0", "ffn_down": "Q5_0", "ffn_up": "MXFP4"}
    folder, file = made(tmp_path, "llama", types)
    spec = describe(EngineConfig(model=str(file)))
    source = gguf.GGUFReader(file)
    entries = {each.name: each for each in source.tensors}
    weights = open_weights(spec)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if tensor.ndim == 1:
            continue
        found = weights.table(name, *tensor.shape).dequantized(np.dtype(np.float32))
        entry = entries[stored(name).names[0]]
        theirs = dequantize(entry.data, entry.tensor_type).reshape(tensor.shape)
        heads = {"attn_q": 4, "attn_k": 2}.get(entry.name.split(".")[-2])
        assert np.array_equal(permuted(found, heads) if heads else found, theirs)
    assert len(Loop(make_runner(file)).generate([[1, 2, 3]], 4)[0]) == 4


async def test_the_demo_model_in_a_file_answers_in_its_chat_format(tmp_path: Path) -> None:
    file = tmp_path / "demo.gguf"
    write(MODEL_PATH, file, "llama", {"ffn_up": "Q8_0", "ffn_gate": "Q8_0"}, MODEL_PATH)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    async with AsyncEngine(model=str(file)) as engine:
        answer = await engine.chat(question, SamplingParams(temperature=0, max_tokens=24))
    assert "Paris" in answer.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"GGML" + data[4:], "no GGUF file"),
        (lambda data: data[:4] + b"\x01" + data[5:], "version 1 is not supported"),
        (lambda data: data[:200], "cannot read"),
        (lambda data: data[: len(data) // 2], "does not lie within"),
        (lambda data: data.replace(b"llama", b"mamba", 1), "'mamba' of .* is not supported"),
    ],
)
def test_unreadable_file_is_named(change: Any, message: str, tmp_path: Path) -> None:
    _, file = made(tmp_path, "llama", {})
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ModelLoadError, match=message):
        model_folder(str(file))


@pytest.mark.parametrize(
    "damage",
    [
        {"tokenizer.ggml.merges": ["no such"]},
        {"tokenizer.huggingface.json": "{}"},
        {"tokenizer.ggml.model": "rwkv"},
    ],
    ids=str,
)
def test_a_tokenizer_that_cannot_be_made_is_named(damage: dict[str, Any]) -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"]}
    with pytest.raises(ModelLoadError, match=r"the tokenizer of x\.gguf: .*tokenizer\.json beside"):
        make_tokenizer(metadata | damage, "x.gguf")


@pytest.mark.parametrize(
    ("pre", "begins"), [("llama-bpe", True), ("falcon3", True), ("qwen2", False)]
)
def test_a_file_that_says_nothing_of_its_first_token(pre: str, begins: bool) -> None:
    """As llama.cpp has it: Llama 3's files of 2024 have no add_bos_token."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": ["a", "b", "<s>"],
        "tokenizer.ggml.token_type": [1, 1, 3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 2,
    }
    assert make_tokenizer(metadata, "x.gguf").encode("ab").ids == [2, 0, 1][not begins :]
    said = metadata | {"tokenizer.ggml.add_bos_token": not begins}
    assert make_tokenizer(said, "x.gguf").encode("ab").ids == [2, 0, 1][begins:]


@pytest.mark.parametrize(
    ("tokens", "eos", "ends"),
    [
        (["a", "<|endoftext|>", "<|im_end|>"], 1, [1, 2]),
        (["a", "</s>", "<end_of_turn>", "b"], 1, [1, 2]),
        (["a", "<|end|>"], 1, [1]),
        (["<|return|>", "<|call|>", "<|end|>", "<|endoftext|>"], 0, [0, 1, 3]),
        (["a", "b"], None, []),
    ],
)
def test_answers_end_where_llama_cpp_ends_them(
    tokens: list[str], eos: int | None, ends: list[int]
) -> None:
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": eos}
    assert end_token_ids(metadata) == ends


def test_a_file_may_have_a_template_for_tools(tmp_path: Path) -> None:
    metadata = {"tokenizer.chat_template": "{{ 1 }}", "tokenizer.chat_template.tool_use": "t"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(metadata)))
    source = TemplateSource.read(tmp_path)
    assert source is not None
    assert (source.text, source.text_with_tools) == ("{{ 1 }}", "t")


def test_a_quantized_file_is_not_quantized_again(tmp_path: Path) -> None:
    _, file = made(tmp_path, "llama", {"attn_q": "Q8_0"})
    with pytest.raises(ConfigError, match="quantized already"):
        open_weights(describe(EngineConfig(model=str(file), quantization="int8")))


def test_a_file_of_floats_may_be(tmp_path: Path) -> None:
    _, file = made(tmp_path, "llama", {})
    open_weights(describe(EngineConfig(model=str(file), quantization="int8")))


def test_the_tokenizer_of_the_demo_is_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "demo.gguf"
    write(MODEL_PATH, file, "llama", {}, MODEL_PATH)
    ours = Tokenizer.from_file(str(model_folder(str(file)) / "tokenizer.json"))
    theirs = Tokenizer.from_file(str(MODEL_PATH / "tokenizer.json"))
    for text in ("Hello, world!", "<|im_start|>user\nWhat is 12 + 7?<|im_end|>", "naïve 東京 😀"):
        assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs.encode(text).ids)


TEXTS = (
    "Hello, world!",
    "the other  weather there, here and  there",
    "naïve 東京 😀 \t tabs\n\nlines",
    "12345 + 67 = 12412 ",
)
"""None begins with a space: to one, llama.cpp and SentencePiece add a second, transformers none."""


def write_pieces(file: Path) -> None:
    """A file with a SentencePiece vocabulary: bytes, letters, and a few longer pieces."""
    words = ["the", "ther", "other", "weather", "here", "and", "re", "er", "he", "th", "ea", "at"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = [*(f"▁{word}" for word in words), *words, *letters, "▁", "H", "!", ",", "▁o", "▁w"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(index) for index in range(len(pieces))])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(pieces))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["byte pairs", "pieces"])
def test_tokenizers_are_those_that_transformers_reads(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "demo.gguf"
    if kind == "pieces":
        write_pieces(file)
    else:
        write(MODEL_PATH, file, "llama", {}, MODEL_PATH)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    ours = make_tokenizer(GgufFile(file).metadata, file)
    for text in TEXTS:
        wanted = theirs(text)["input_ids"]
        assert ours.encode(text).ids == wanted, text
        assert ours.decode(wanted) == theirs.decode(wanted, skip_special_tokens=True)
