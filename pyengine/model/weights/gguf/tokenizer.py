"""A tokenizer.json, from the tokens of a GGUF file."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyengine.errors import ModelLoadError
from pyengine.tokenizer import byte_pairs
from pyengine.tokenizer.pieces import Pieces, tokenizer_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Division(NamedTuple):
    """How text is divided before byte pairs are merged.

    Attributes:
        pattern: See :func:`pyengine.tokenizer.byte_pairs.byte_pairs`, as the others.
        whole_words: A word that is a token is that token.
        digits: Digits are tokens of their own.
        nfc: Text is composed first.
        begins: Texts begin with a token where the file does not say.
    """

    pattern: str | Sequence[str] = ""
    whole_words: bool = False
    digits: bool = False
    nfc: bool = False
    begins: bool = False


_LLAMA_3 = Division(byte_pairs.LLAMA_3, whole_words=True, begins=True)
_DIGITS = Division(digits=True)
_QWEN = Division(byte_pairs.QWEN_2)
DIVISIONS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1"), _LLAMA_3),
    **dict.fromkeys(("pixtral", "lfm2"), _LLAMA_3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), Division(byte_pairs.LLAMA_3)),
    **dict.fromkeys(("default", "exaone4", "gpt-2", "olmo", "phi-2", "trillion"), Division()),
    **dict.fromkeys(("exaone", "refact", "smollm", "starcoder"), _DIGITS),
    "command-r": Division(digits=True, nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "hunyuan", "solar-open", "stablelm2"), _QWEN),
    "qwen2": Division(byte_pairs.QWEN_2, nfc=True),
    "qwen35": Division(byte_pairs.QWEN_3_5, nfc=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), Division(byte_pairs.GPT_4O)),
    "tekken": Division(byte_pairs.TEKKEN, whole_words=True, begins=True),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), Division(byte_pairs.DEEPSEEK_3)),
    "deepseek-coder": Division(byte_pairs.DEEPSEEK_CODER),
    "seed-coder": Division(byte_pairs.SEED),
    "bailingmoe": Division(byte_pairs.BAILING),
}
"""By 'tokenizer.ggml.pre'."""
CONTROL, USER_DEFINED = 3, 4


def make_tokenizer(metadata: Mapping[str, Any], where: object) -> "Tokenizer":
    """The tokenizer of a GGUF file.

    Args:
        metadata: The metadata of the file.
        where: The file, for errors.

    Raises:
        ModelLoadError: Its kind is not supported, or something is missing.
    """
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.processors import TemplateProcessing

    kind = metadata.get("tokenizer.ggml.model")
    make = MAKERS.get(str(kind))
    try:
        if embedded := metadata.get("tokenizer.huggingface.json"):
            return Tokenizer.from_str(embedded)
        if make is None:
            raise ValueError(f"kind {kind!r} is not supported; there are: {', '.join(MAKERS)}")
        tokenizer = make(metadata)
        tokens = metadata["tokenizer.ggml.tokens"]
        kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
        added = [
            AddedToken(token, special=kind == CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]
        tokenizer.add_tokens(added)
        begin = metadata.get("tokenizer.ggml.bos_token_id")
        # As llama.cpp has it where the file does not say.
        division = DIVISIONS.get(metadata.get("tokenizer.ggml.pre", "default"), Division())
        begins = kind in ("llama", "gemma4") or (kind == "gpt2" and division.begins)
        adds = metadata.get("tokenizer.ggml.add_bos_token", begins)
        if adds and begin is not None:
            tokenizer.post_processor = TemplateProcessing(
                single=f"{tokens[begin]} $A",
                pair=f"{tokens[begin]} $A $B",
                special_tokens=[(tokens[begin], begin)],
            )
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelLoadError(
            f"the tokenizer of {where}: {error}. Put the model's tokenizer.json beside the file",
            param="model",
        ) from error
    return tokenizer


def _byte_pairs(metadata: Mapping[str, Any]) -> "Tokenizer":
    """Byte pairs, as GPT-2 and those after it have them."""
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in DIVISIONS:
        raise ValueError(f"'tokenizer.ggml.pre' of {name!r} is not supported")
    how = DIVISIONS[name]
    return byte_pairs.byte_pairs(
        _vocabulary(metadata),
        _merges(metadata),
        how.pattern,
        whole_words=how.whole_words,
        digits=how.digits,
        nfc=how.nfc,
    )


def _sentence_pieces(metadata: Mapping[str, Any]) -> "Tokenizer":
    """SentencePiece's byte pairs, as Llama 2 has them."""
    return tokenizer_of(
        Pieces(
            metadata["tokenizer.ggml.tokens"],
            metadata["tokenizer.ggml.scores"],
            metadata.get("tokenizer.ggml.unknown_token_id", 0),
            space_before=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        )
    )


def _merged_pieces(metadata: Mapping[str, Any]) -> "Tokenizer":
    """Pieces whose merges the file has, as Gemma 4's."""
    pieces = Pieces(
        metadata["tokenizer.ggml.tokens"],
        (),
        metadata.get("tokenizer.ggml.unknown_token_id"),
        space_before=bool(metadata.get("tokenizer.ggml.add_space_prefix", False)),
        merges=_merges(metadata),
    )
    return tokenizer_of(pieces)


def _vocabulary(metadata: Mapping[str, Any]) -> dict[str, int]:
    return {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = (merge.split(" ", 1) for merge in metadata.get("tokenizer.ggml.merges", ()))
    return [(left, right) for left, right in pairs]


MAKERS = {"gpt2": _byte_pairs, "llama": _sentence_pieces, "gemma4": _merged_pieces}
"""By 'tokenizer.ggml.model'."""
