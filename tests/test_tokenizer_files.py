"""Tokenizers made of files other than tokenizer.json: the ids of the libraries that wrote these."""

import base64
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiktoken

from pyengine.errors import ModelLoadError
from pyengine.tokenizer import Tokenizer
from pyengine.tokenizer.byte_pairs import LLAMA_3, TEKKEN, spelled
from pyengine.tokenizer.sentencepiece import read_model
from tests.programs import REPOSITORY

TEXT = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "docs").glob("*.md"))
)
OTHER = (
    "naïve 東京 😀 \t tabs\n\nlines  12345 + 67 = ½ don't DON'T we'LL Ünï\r\n résumé «да» हिन्दी "
)


def texts(count: int) -> list[str]:
    """Pieces of the documentation, and of words of many scripts."""
    rng = random.Random(1)
    words = [*OTHER.split(" "), " ", "  ", "the", "Tokens", "<s>x", "a_b"]
    made = ["", "Hello, world!", OTHER]
    while len(made) < count:
        at = rng.randrange(len(TEXT) - 100)
        made.append(TEXT[at : at + rng.randrange(1, 90)])
        made.append(" ".join(rng.choices(words, k=rng.randrange(1, 8))))
    return made[:count]


def learned(size: int) -> list[bytes]:
    """Tokens in tiktoken's order: bytes, then what merging learns from the documentation."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import models, pre_tokenizers, trainers

    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator([TEXT, OTHER * 9], trainer)
    of_character = {spelled(bytes([byte])): byte for byte in range(256)}
    found = [bytes(of_character[each] for each in token) for token in _by_id(inner.get_vocab())]
    return [bytes([byte]) for byte in range(256)] + [each for each in found if len(each) > 1]


def _by_id(vocab: dict[str, int]) -> list[str]:
    return sorted(vocab, key=lambda token: vocab[token])


def tekken(folder: Path, tokens: Sequence[bytes]) -> Callable[[str], list[int]]:
    """A tekken.json, and the encoding of tiktoken, by which mistral-common reads it."""
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    config = {
        "pattern": TEKKEN, "num_vocab_tokens": len(tokens), "default_vocab_size": len(tokens) + 30,
        "default_num_special_tokens": 30, "version": "v7",
    }  # fmt: skip
    named = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")
    special = [
        {"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(named)
    ]
    made = {"config": config, "vocab": vocab, "special_tokens": special}
    (folder / "tekken.json").write_text(json.dumps(made))
    ranks = {token: rank for rank, token in enumerate(tokens)}
    encoding = tiktoken.Encoding("t", pat_str=TEKKEN, mergeable_ranks=ranks, special_tokens={})
    return lambda text: [1, *(30 + token for token in encoding.encode(text, disallowed_special=()))]


def ranks(folder: Path, tokens: Sequence[bytes]) -> Callable[[str], list[int]]:
    """A tokenizer.model with ranks, as Llama 3's own, and tiktoken's encoding."""
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    (folder / "tokenizer.model").write_bytes(b"".join(lines))
    by_token = {token: rank for rank, token in enumerate(tokens)}
    encoding = tiktoken.Encoding("t", pat_str=LLAMA_3, mergeable_ranks=by_token, special_tokens={})
    return lambda text: encoding.encode(text, disallowed_special=())


MADE = {"tekken.json": tekken, "ranks": ranks}


def check(folder: Path, expected: Callable[[str], list[int]], asked: Sequence[str]) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    for text in asked:
        ids = tokenizer.encode(text)
        assert ids == expected(text), text
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("kind", MADE)
def test_ids_are_those_of_tiktoken(kind: str, tmp_path: Path) -> None:
    check(tmp_path, MADE[kind](tmp_path, learned(900)), [OTHER, "Hello, world!", ""])


@pytest.mark.slow
@pytest.mark.parametrize("kind", MADE)
def test_so_are_those_of_3000_texts(kind: str, tmp_path: Path) -> None:
    asked = [text for text in texts(3000) if "<s>" not in text]
    check(tmp_path, MADE[kind](tmp_path, learned(4000)), asked)


def test_control_tokens_of_tekken_are_those_of_the_file_and_special(tmp_path: Path) -> None:
    tekken(tmp_path, learned(300))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("[INST]a[/INST]", add_special_tokens=False) == [3, 30 + 97, 4]
    assert tokenizer.token_id("<SPECIAL_29>") == 29
    assert tokenizer.special_tokens >= {"<s>", "</s>", "[INST]"}
    assert tokenizer.vocab_size == 330
    assert tokenizer.token_bytes(30 + 97) == b"a"


def sentence_pieces(folder: Path, kind: str, **options: Any) -> Any:
    """A tokenizer.model that SentencePiece has trained, and its processor."""
    sentencepiece = pytest.importorskip("sentencepiece")
    (folder / "text.txt").write_text(TEXT + OTHER)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "tokenizer"), model_type=kind,
        vocab_size=1500, byte_fallback=True, character_coverage=0.99, minloglevel=9,
        hard_vocab_limit=False, **options,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


LLAMA: dict[str, Any] = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "split_digits": True,
    "allow_whitespace_only_pieces": True,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bpe", LLAMA),
        ("unigram", LLAMA),
        ("bpe", {"normalization_rule_name": "identity"}),
        ("unigram", {"normalization_rule_name": "nmt_nfkc"}),
        ("bpe", LLAMA | {"add_dummy_prefix": False, "user_defined_symbols": ["<mine>"]}),
    ],
    ids=["llama", "unigrams", "one space", "folded", "no space before"],
)
def test_ids_are_those_of_sentencepiece(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    theirs = sentence_pieces(tmp_path, kind, **options)
    tokenizer = Tokenizer.from_folder(tmp_path)

    def score(ids: Sequence[int]) -> float:
        return float(sum(theirs.get_score(each) for each in ids))

    differing = []
    for text in texts(3000):
        ids, expected = tokenizer.encode(text), [1, *theirs.encode(text)]
        # Unigrams have ties: runs of spaces, divided in one way or the other.
        tie = kind == "unigram" and abs(score(ids) - score(expected)) < 1e-3
        if "<s>" not in text and ids != expected and not tie:
            differing.append(text)
    assert differing == []


def test_merges_beside_a_vocabulary_are_those_of_the_tokenizer(
    demo_model: Path, tmp_path: Path
) -> None:
    spec = json.loads((demo_model / "tokenizer.json").read_text())
    model = spec["model"]
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    own = {token: index for token, index in model["vocab"].items() if token not in added}
    (tmp_path / "vocab.json").write_text(json.dumps(own))
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    tokenizer, whole = Tokenizer.from_folder(tmp_path), Tokenizer.from_folder(demo_model)
    for text in ("Hello, world!", "a<|im_end|>b", "the weather there"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert (added["<|im_end|>"] in tokenizer.encode(text)) == ("<|im_end|>" in text)
    assert tokenizer.vocab_size == whole.vocab_size
    assert "<|im_end|>" in tokenizer.special_tokens


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has no tokenizer: no tokenizer.json, tekken.json, tokenizer.model"),
        ({"tokenizer.model": b"\x0a\xff"}, r"cannot make a tokenizer of .*tokenizer\.model"),
        ({"tekken.json": b"{}"}, r"cannot make a tokenizer of .*tekken\.json"),
        ({"vocab.json": b"{}"}, "Put a tokenizer.json into the folder"),
        (
            {
                "tiktoken.model": b"",
                "tokenizer_config.json": b'{"tokenizer_class": "BertTokenizer"}',
            },
            "tokenizers of class 'BertTokenizer' are not supported",
        ),
    ],
)
def test_what_is_missing_is_named(files: dict[str, bytes], said: str, tmp_path: Path) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelLoadError, match=said):
        Tokenizer.from_folder(tmp_path)


def test_what_is_no_sentencepiece_model_is_refused() -> None:
    for data in (b"", b"\x0a\x05ab", b"\xff" * 20, b"\x0b"):
        with pytest.raises(ValueError, match=r"it (is|ends)"):
            read_model(data)
