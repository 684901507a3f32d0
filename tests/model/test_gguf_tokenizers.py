"""Tokenizers of GGUF files divide text as those of the models' authors do."""

from typing import Any

import pytest

from pyengine.errors import ModelLoadError
from pyengine.model.weights.gguf.tokenizer import DIVISIONS, make_tokenizer

TEXT = "It's 12345 naïve\u0301 漢字!\n\n  x+=1"
DIVIDED = {
    "llama-bpe": "It|'s| |123|45| naïve|\u0301| 漢字|!\n\n| | x|+=|1",
    "qwen2": "It|'s| |1|2|3|4|5| naïve|\u0301| 漢字|!\n\n| | x|+=|1",
    "qwen35": "It|'s| |1|2|3|4|5| naïve\u0301| 漢字|!\n\n| | x|+=|1",
    "gpt-2": "It|'s| 12345| naïve|\u0301| 漢字|!|\n\n | x|+=|1",
    "starcoder": "It|'s| |1|2|3|4|5| naïve|\u0301| 漢字|!|\n\n | x|+=|1",
    "tekken": "It|'s| |1|2|3|4|5| naïve\u0301| 漢字|!\n\n| | x|+=|1",
    "gpt-4o": "It's| |123|45| naïve\u0301| 漢字|!\n\n| | x|+=|1",
    "deepseek-v3": "It|'s| |123|45| naïve\u0301| |漢字|!\n\n| | x|+=|1",
    "deepseek-coder": "It|'|s| |1|2|3|4|5| naïve|\u0301| |漢字|!|\n|\n| | x|+=|1",
    "seed-coder": "It|'s| |1|2|3|4|5| naïve|\u0301| 漢字|!|\n\n| | x|+=|1",
    "bailingmoe": "It|'s| |1|2|3|4|5| naïve|\u0301| 漢字|!\n\n| | x|+=|1",
}
SAME = {
    "dbrx": "llama-bpe", "smaug-bpe": "llama-bpe", "glm4": "llama-bpe", "lfm2": "llama-bpe",
    "falcon-h1": "llama-bpe", "olmo": "gpt-2", "exaone4": "gpt-2", "refact": "starcoder",
    "command-r": "starcoder", "smollm": "starcoder", "deepseek-r1-qwen": "qwen2",
    "stablelm2": "qwen2", "llama4": "gpt-4o", "hunyuan-dense": "deepseek-v3",
}  # fmt: skip


def metadata(**own: Any) -> dict[str, Any]:
    tokens = {
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.model": "gpt2",
    }
    return tokens | {f"tokenizer.ggml.{key}": value for key, value in own.items()}


@pytest.mark.parametrize("pre", [*DIVIDED, *SAME])
def test_text_is_divided_as_the_file_says(pre: str) -> None:
    tokenizer = make_tokenizer(metadata(pre=pre), "x.gguf")
    assert tokenizer.pre_tokenizer is not None
    places = [place for _, place in tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)]
    pieces = [TEXT[begin:end] for begin, end in places]
    assert pieces == DIVIDED[SAME.get(pre, pre)].split("|")


def test_another_division_is_refused_by_its_name() -> None:
    assert "superbpe" not in DIVISIONS
    with pytest.raises(ModelLoadError, match=r"'superbpe' is not supported.*tokenizer\.json"):
        make_tokenizer(metadata(pre="superbpe"), "x.gguf")


def test_pieces_are_merged_as_the_file_of_a_gemma_4_says() -> None:
    tokens = ["<unk>", "<bos>", "<0xC3>", "<0xA9>", "▁", "a", "b", "ab", "▁ab", "\n", "\n\n"]
    given = metadata(
        model="gemma4",
        tokens=tokens,
        merges=["a b", "▁ ab", "\n \n"],
        token_type=[2, 3, 6, 6, *[1] * 7],
        unknown_token_id=0,
        bos_token_id=1,
        add_space_prefix=False,
    )
    tokenizer = make_tokenizer(given, "x.gguf")
    ids = tokenizer.encode("ab ab\n\né").ids
    assert ids == [1, 7, 8, 10, 2, 3]
    assert tokenizer.decode(ids) == "ab ab\n\né"
