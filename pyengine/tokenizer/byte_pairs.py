"""Byte-level byte pairs, as GPT-2 and those after it have them, made of tokens and merges, or of
tokens and their ranks, as tiktoken has them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

# How text is divided before byte pairs are merged.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_3 = _CONTRACTIONS + r"\p{N}{1,3}" + _REST
QWEN_2 = _CONTRACTIONS + r"\p{N}" + _REST
GPT_4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}"
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SEED = _CONTRACTIONS + r"\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
DEEPSEEK_CODER = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}",
)
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_pairs(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    pattern: str | Sequence[str] = "",
    *,
    whole_words: bool = False,
    digits: bool = False,
    nfc: bool = False,
) -> Tokenizer:
    """A tokenizer of byte pairs.

    Args:
        vocab: Tokens, their bytes spelled as characters.
        merges: Pairs, in the order in which they are merged.
        pattern: How text is divided before that, and what is left again; empty: as GPT-2 does.
        whole_words: A word that is a token is that token, whatever merges give.
        digits: Digits are tokens of their own.
        nfc: Text is composed first.
    """
    tokenizer = Tokenizer(
        models.BPE(vocab=dict(vocab), merges=list(merges), ignore_merges=whole_words)
    )
    steps: list[Any] = []
    if digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    patterns = [pattern] if isinstance(pattern, str) and pattern else pattern
    steps += [pre_tokenizers.Split(Regex(each), "isolated") for each in patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def from_ranks(
    tokens: Sequence[bytes], first: int, pattern: str, *, nfc: bool = False
) -> Tokenizer:
    """The tokenizer that tiktoken makes of tokens in the order of their ranks.

    tiktoken merges the neighbours whose union has the lowest rank. So each way to divide a token in
    two is a merge, in the order of the tokens' ranks. O(bytes of all tokens).
    """
    rank = {token: index for index, token in enumerate(tokens)}
    merges = []
    for token in tokens:
        halves = [
            (rank[token[:cut]], rank[token[cut:]])
            for cut in range(1, len(token))
            if token[:cut] in rank and token[cut:] in rank
        ]
        merges += [
            (spelled(tokens[left]), spelled(tokens[right])) for left, right in sorted(halves)
        ]
    vocab = {spelled(token): first + index for index, token in enumerate(tokens)}
    return byte_pairs(vocab, merges, pattern, whole_words=True, nfc=nfc)


def spelled(token: bytes) -> str:
    """A token's bytes as the characters of byte-level vocabularies."""
    return "".join(map(_CHARACTERS.__getitem__, token))


def _characters() -> list[str]:
    """Each byte's character: itself where it prints, else one beyond Latin-1, in order."""
    prints = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in prints else next(others)) for byte in range(256)]


_CHARACTERS = _characters()
