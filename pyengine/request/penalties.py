"""The biases, bad words and tokens of a request, by token ids as the scheduler takes them."""

from array import array
from collections.abc import Iterator

from pyengine.errors import InvalidRequestError
from pyengine.sampling import SamplingParams
from pyengine.tokenizer import Tokenizer


def logit_bias(params: SamplingParams, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """The tokens whose logits are changed by something, and by how much.

    Args:
        params: Validated sampling parameters.
        vocab_size: Logits of a row.

    Raises:
        InvalidRequestError: A token is not in the vocabulary.
    """
    beyond = next((token for token in params.logit_bias if token >= vocab_size), None)
    if beyond is not None:
        raise InvalidRequestError(
            f"'logit_bias' must name tokens from 0 to {vocab_size - 1}, not {beyond}",
            param="logit_bias",
        )
    return tuple((token, float(bias)) for token, bias in params.logit_bias.items() if bias)


def allowed_tokens(params: SamplingParams, vocab_size: int) -> bytes:
    """The tokens that the answer may have, u32 each; empty where all are.

    Args:
        params: Validated sampling parameters.
        vocab_size: Logits of a row.

    Raises:
        InvalidRequestError: A token is not in the vocabulary.
    """
    allowed = params.allowed_token_ids or ()
    beyond = next((token for token in allowed if token >= vocab_size), None)
    if beyond is not None:
        raise InvalidRequestError(
            f"'allowed_token_ids' must name tokens from 0 to {vocab_size - 1}, not {beyond}",
            param="allowed_token_ids",
        )
    return array("I", sorted(set(allowed))).tobytes()


def dry_breakers(params: SamplingParams, tokenizer: Tokenizer) -> bytes:
    """The tokens at which sequences end, u32 each; empty where repetitions cost nothing.

    Args:
        params: Validated sampling parameters.
        tokenizer: Whose tokens are searched.

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


def bad_words(
    params: SamplingParams, tokenizer: Tokenizer, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """The tokens of each bad word, in every spelling.

    Args:
        params: Whose ranges are checked.
        tokenizer: Spells the words.
        vocab_size: Logits of a row.

    Raises:
        InvalidRequestError: A bad word has no tokens.
    """
    return tuple(
        spelling
        for index, word in enumerate(params.bad_words)
        for spelling in _spellings(word, index, tokenizer, vocab_size)
    )


def _spellings(
    word: str, index: int, tokenizer: Tokenizer, vocab_size: int
) -> Iterator[tuple[int, ...]]:
    """The tokens of a bad word at the beginning of a text and within it, behind a space."""
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
