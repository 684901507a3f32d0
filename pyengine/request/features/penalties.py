"""Biases, bad words and the breakers of DRY, by token ids as the scheduler takes them.

Penalties that are numbers of the sampling row need no extension.
"""

from array import array
from collections.abc import Iterator
from typing import ClassVar

from pyengine.errors import InvalidRequestError
from pyengine.messages import Extension
from pyengine.request.features.feature import Asked, Feature
from pyengine.sampling import SamplingParams
from pyengine.tokenizer import Tokenizer


class PenaltiesExtension(Extension):
    """Asks for changes of logits beside those of the sampling row.

    Attributes:
        logit_bias: Pairs of a token and the number added to its logit; each token once.
        bad_words: Sequences of tokens of which the last must not follow the others.
        dry_breakers: Tokens at which a sequence ends that must not be repeated, as u32
            little-endian; for the rule DRY.
    """

    TAG: ClassVar[str] = "penalties"

    logit_bias: tuple[tuple[int, float], ...]
    bad_words: tuple[tuple[int, ...], ...]
    dry_breakers: bytes


def _ask(asked: Asked, options: object) -> PenaltiesExtension | None:
    params, vocab_size = asked.params, asked.info.vocab_size
    extension = PenaltiesExtension(
        _logit_bias(params, vocab_size),
        tuple(
            spelling
            for index, word in enumerate(params.bad_words)
            for spelling in _spellings(word, index, asked.tokenizer, vocab_size)
        ),
        _dry_breakers(params, asked.tokenizer),
    )
    asks = extension.logit_bias or extension.bad_words or extension.dry_breakers
    return extension if asks else None


def _logit_bias(params: SamplingParams, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """Returns the tokens whose logits are changed, and by how much."""
    beyond = next((token for token in params.logit_bias if token >= vocab_size), None)
    if beyond is not None:
        raise InvalidRequestError(
            f"'logit_bias' must name tokens from 0 to {vocab_size - 1}, not {beyond}",
            param="logit_bias",
        )
    return tuple((token, float(bias)) for token, bias in params.logit_bias.items() if bias)


def _dry_breakers(params: SamplingParams, tokenizer: Tokenizer) -> bytes:
    """Returns the tokens at which sequences end; empty where repetitions cost nothing.

    Raises:
        InvalidRequestError: A text is in no token, so that no sequence would end there.
    """
    if params.dry_multiplier == 0.0:
        return b""
    for index, text in enumerate(params.dry_sequence_breakers):
        # A byte that is in no token cannot be written at all.
        if len(text.encode("utf-8", "surrogatepass")) > 1 and not tokenizer.containing(text):
            raise InvalidRequestError(
                f"'dry_sequence_breakers[{index}]' is in no single token of the model; "
                "give shorter texts",
                param=f"dry_sequence_breakers[{index}]",
            )
    found = {t for text in params.dry_sequence_breakers for t in tokenizer.containing(text)}
    return array("I", sorted(found)).tobytes()


def _spellings(
    word: str, index: int, tokenizer: Tokenizer, vocab_size: int
) -> Iterator[tuple[int, ...]]:
    """Yields the tokens of a bad word at the beginning of a text and within it, behind a space."""
    bare = word.lstrip(" ")
    plain = tuple(tokenizer.encode(bare or word, add_special_tokens=False))
    if not plain or max(plain) >= vocab_size:
        raise InvalidRequestError(
            f"'bad_words[{index}]' has no tokens in the model's vocabulary",
            param=f"bad_words[{index}]",
        )
    yield plain
    if bare:
        spaced = tuple(tokenizer.encode(f" {bare}", add_special_tokens=False))
        # With the space as a separate token, the plain spelling forbids the word behind it too.
        if spaced[-len(plain) :] != plain and max(spaced) < vocab_size:
            yield spaced


FEATURE = Feature(PenaltiesExtension, _ask)
