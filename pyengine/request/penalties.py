"""The biases and bad words of a request, by token ids as the scheduler takes them."""

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
