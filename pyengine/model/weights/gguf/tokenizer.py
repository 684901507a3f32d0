"""A tokenizer.json, from the tokens of a GGUF file."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyengine.errors import ModelLoadError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# How text is divided before byte pairs are merged: names of 'tokenizer.ggml.pre'.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "llama-bpe": _CONTRACTIONS + r"\p{N}{1,3}" + _REST,
    "llama3": _CONTRACTIONS + r"\p{N}{1,3}" + _REST,
    "qwen2": _CONTRACTIONS + r"\p{N}" + _REST,
    "gpt-4o": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}"
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-2": "",
    "default": "",
    "smollm": "",
}
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
SPACE = "▁"


def make_tokenizer(metadata: Mapping[str, Any], where: object) -> "Tokenizer":
    """The tokenizer of a GGUF file.

    Args:
        metadata: Of the file.
        where: The file, for errors.

    Raises:
        ModelLoadError: Its kind is not supported, or something is missing.
    """
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.processors import TemplateProcessing

    kind = metadata.get("tokenizer.ggml.model")
    make = {"gpt2": _byte_pairs, "llama": _sentence_pieces}.get(str(kind))
    try:
        if embedded := metadata.get("tokenizer.huggingface.json"):
            return Tokenizer.from_str(embedded)
        if make is None:
            raise ValueError(f"kind {kind!r} is not supported; there are: gpt2, llama")
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
        adds = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama")
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
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", ())]
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in PATTERNS:
        raise ValueError(f"'tokenizer.ggml.pre' of {name!r} is not supported")
    vocab = {token: index for index, token in enumerate(tokens)}
    whole = name.startswith("llama")
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=whole))
    steps: list[Any] = []
    if name == "smollm":
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if PATTERNS[name]:
        steps.append(pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not PATTERNS[name]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _sentence_pieces(metadata: Mapping[str, Any]) -> "Tokenizer":
    """SentencePiece's byte pairs, as Llama 2 has them: of two merges that with the better score."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens = metadata["tokenizer.ggml.tokens"]
    scores = metadata["tokenizer.ggml.scores"]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                merges.append((-score, vocab[left], vocab[right]))
    merges.sort()
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[(tokens[left], tokens[right]) for _, left, right in merges],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [normalizers.Replace(" ", SPACE)]
    ends: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE))
        ends.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(ends)
    return tokenizer
