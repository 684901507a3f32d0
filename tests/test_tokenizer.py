"""The tokenizer around a model folder."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from pyengine.errors import ContextLengthError, InvalidRequestError, ModelLoadError
from pyengine.tokenizer import OFF_LOOP_CHARACTERS, Tokenizer
from tests.reference import fetched

CORPUS = ["the quick brown fox jumps over the lazy dog " * 8, "Grüße an alle, 안녕하세요 👋"]


def byte_level(normalizer: Any = None) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.normalizer = normalizer
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return inner


def byte_fallback() -> tokenizers.Tokenizer:
    """As SentencePiece's: spaces become ▁, bytes that no token spells have their own."""
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}}
    vocab |= {token: 257 + i for i, token in enumerate(["▁", "h", "i", "▁h", "▁hi", "hi"])}
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab,
            [("▁", "h"), ("▁h", "i"), ("h", "i")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return inner


def make(inner: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(inner, inner.to_str())


KINDS = {
    "byte level": make(byte_level()),
    "byte level, NFC": make(byte_level(normalizers.NFC())),
    "byte fallback": make(byte_fallback()),
}


@pytest.mark.parametrize("kind", list(KINDS))
@given(text=st.text(max_size=60) | st.text("hi 각각é́", max_size=60))
@settings(max_examples=200)
def test_no_text_has_fewer_tokens_than_the_bound(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    if any(0xD800 <= ord(character) < 0xE000 for character in text):
        with pytest.raises(InvalidRequestError):
            tokenizer.encode(text)
        return
    fewest = tokenizer.fewest_tokens(text)
    assert fewest <= len(tokenizer.encode(text, add_special_tokens=False))
    assert (fewest > 0) == (text != "")


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_hostile_prompt_is_refused_before_it_is_encoded(kind: str) -> None:
    tokenizer = KINDS[kind]
    with pytest.raises(ContextLengthError, match="context length is 2048 tokens; the prompt has"):
        tokenizer.check_length("ab " * 1_400_000, 2048)
    tokenizer.check_length("ab " * 10, 2048)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: setattr(t, "normalizer", normalizers.Strip()), "spaces vanish"),
        (lambda t: setattr(t, "normalizer", normalizers.Replace("ab", "")), "text vanishes"),
        (
            lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Whitespace()),
            "spaces vanish, and a word may be one unknown token",
        ),
        (lambda t: t.add_special_tokens([AddedToken("<x>", rstrip=True)]), "spaces vanish"),
    ],
)
def test_no_bound_where_text_may_vanish(change: Any, why: str) -> None:
    inner = byte_level()
    change(inner)
    tokenizer = make(inner)
    assert tokenizer.fewest_tokens("ab " * 1000) == 0, why
    tokenizer.check_length("ab " * 1000, 5)


def test_special_tokens() -> None:
    tokenizer = KINDS["byte level"]
    assert tokenizer.encode("the")[0] == 0
    plain = tokenizer.encode("the", add_special_tokens=False)
    assert plain[0] != 0
    assert tokenizer.encode("the<|im_end|></s>", add_special_tokens=False) == [*plain, 2, 1]
    assert tokenizer.decode([*plain, 2]) == "the<|im_end|>"
    assert tokenizer.decode([*plain, 2], skip_special_tokens=True) == "the"
    assert tokenizer.vocab_size == byte_level().get_vocab_size()
    assert (tokenizer.token_id("<|im_end|>"), tokenizer.token_id("<nothing>")) == (2, None)


async def test_long_texts_are_encoded_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = KINDS["byte level"]
    threads: list[bool] = []
    encode = Tokenizer.encode

    def spy(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        threads.append(threading.current_thread() is threading.main_thread())
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", spy)
    long = "fox " * (OFF_LOOP_CHARACTERS // 4)
    short, other = await asyncio.gather(
        tokenizer.encode_async("fox "), tokenizer.encode_async(long, add_special_tokens=False)
    )
    assert threads == [True, False]
    assert short == encode(tokenizer, "fox ")
    assert other == encode(tokenizer, long, add_special_tokens=False)


def _folder(path: Path, **files: Any) -> Path:
    byte_level().save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        ({}, ()),
        ({"config": {"eos_token_id": 7}}, (7,)),
        ({"config": {"eos_token_id": 7}, "generation_config": {"eos_token_id": [9, 8]}}, (8, 9)),
        ({"config": {"eos_token_id": None}, "tokenizer_config": {"eos_token": "</s>"}}, (1,)),
        (
            {
                "config": {"eos_token_id": 1},
                "tokenizer_config": {"eos_token": {"content": "<|im_end|>"}},
            },
            (1, 2),
        ),
        ({"tokenizer_config": {"eos_token": "<nothing>"}}, ()),
    ],
)
def test_end_of_sequence_tokens(tmp_path: Path, files: Any, eos: tuple[int, ...]) -> None:
    assert Tokenizer.from_folder(_folder(tmp_path, **files)).eos_token_ids == eos


def test_from_a_folder(tmp_path: Path) -> None:
    inner = byte_level()
    inner.enable_truncation(2)
    inner.enable_padding(length=50)
    path = tmp_path / "tokenizer.json"
    inner.save(str(path))
    tokenizer = Tokenizer.from_folder(str(tmp_path))
    assert len(tokenizer.encode("one two three", add_special_tokens=False)) not in (2, 50)
    assert tokenizer.tokenizer_json == path.read_text()


def test_folders_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    for content in ("{", "{}", "\udcff"):
        (tmp_path / "tokenizer.json").write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
            Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_real_tokenizers(name: str) -> None:
    text = fetched(f"tokenizers/{name}.json").read_text(encoding="utf-8")
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(text), text)
    for sample in ("hello world", " " * 500, "가나다" * 50, "각" * 50, "=" * 300):
        assert 0 < tokenizer.fewest_tokens(sample) <= len(tokenizer.encode(sample))
    assert tokenizer.fewest_tokens("x" * (4 << 20)) > 8192
