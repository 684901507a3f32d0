"""SentencePiece vocabularies as tokenizers: byte pairs, as Llama 2 has them, and unigrams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPACE = "▁"


@dataclass(frozen=True)
class Pieces:
    """A vocabulary, and how text becomes its pieces.

    Attributes:
        tokens: The pieces; those of bytes are spelled ``<0x0A>``.
        scores: The score of each piece.
        unknown: The id of the piece for what is none; None: there is none.
        unigram: Whether pieces are unigrams, and not merged byte pairs.
        byte_fallback: Whether what is no piece becomes bytes.
        space_before: Whether text gets a space before it.
        one_space: Whether spaces around text are dropped, and several become one.
        folding: SentencePiece's compiled map of characters; empty: there is none.
        merges: Pairs in the order in which they are merged; None: scores tell.
    """

    tokens: Sequence[str]
    scores: Sequence[float]
    unknown: int | None = 0
    unigram: bool = False
    byte_fallback: bool = True
    space_before: bool = True
    one_space: bool = False
    folding: bytes = b""
    merges: Sequence[tuple[str, str]] | None = None


def tokenizer_of(pieces: Pieces) -> Tokenizer:
    """The tokenizer of a vocabulary, without special tokens."""
    tokenizer = Tokenizer(_unigrams(pieces) if pieces.unigram else _byte_pairs(pieces))
    steps: list[Any] = [normalizers.Precompiled(pieces.folding)] if pieces.folding else []
    if pieces.one_space:
        # SentencePiece looks for spaces at the end once they are written as pieces have them.
        ends_of_text, several = Regex(rf"\A +|[ {SPACE}]+\z"), Regex(" {2,}")
        steps += [normalizers.Replace(ends_of_text, ""), normalizers.Replace(several, " ")]
    if pieces.space_before:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    ends: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if pieces.space_before:
        ends.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    if pieces.unigram:
        # Words apart, which are the same pieces as in company: none has a space but at its front.
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Sequence(ends)
    return tokenizer


def _unigrams(pieces: Pieces) -> models.Unigram:
    vocab = list(zip(pieces.tokens, pieces.scores, strict=True))
    return models.Unigram(vocab, unk_id=pieces.unknown, byte_fallback=pieces.byte_fallback)


def _byte_pairs(pieces: Pieces) -> models.BPE:
    tokens = pieces.tokens
    vocab = {token: index for index, token in enumerate(tokens)}
    return models.BPE(
        vocab=vocab,
        merges=_scored(pieces, vocab) if pieces.merges is None else list(pieces.merges),
        unk_token=None if pieces.unknown is None else tokens[pieces.unknown],
        fuse_unk=True,
        byte_fallback=pieces.byte_fallback,
    )


def _scored(pieces: Pieces, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Orders merges: the one with the better score comes first."""
    tokens, merges = pieces.tokens, []
    for token, score in zip(tokens, pieces.scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                merges.append((-score, vocab[left], vocab[right]))
    merges.sort()
    return [(tokens[left], tokens[right]) for _, left, right in merges]
