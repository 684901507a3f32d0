"""The penalties, biases and bad words of a request, by token ids as the scheduler takes them."""

from collections.abc import Iterator

from pyengine.errors import InvalidRequestError
from pyengine.messages import PenaltyRules
from pyengine.sampling import SamplingParams
from pyengine.tokenizer import Tokenizer


def penalty_rules(
    params: SamplingParams, tokenizer: Tokenizer, vocab_size: int
) -> PenaltyRules | None:
    """The penalties, biases and bad words of ``params``; None if there are none.

    Args:
        params: Validated sampling parameters.
        tokenizer: Spells the bad words.
        vocab_size: Logits of a row.

    Raises:
        InvalidRequestError: A token is not in the vocabulary, or a bad word has no tokens.
    """
    beyond = next((token for token in params.logit_bias if token >= vocab_size), None)
    if beyond is not None:
        raise InvalidRequestError(
            f"'logit_bias' must name tokens from 0 to {vocab_size - 1}, not {beyond}",
            param="logit_bias",
        )
    rules = PenaltyRules(
        params.presence_penalty,
        params.frequency_penalty,
        params.repetition_penalty,
        tuple((token, float(bias)) for token, bias in params.logit_bias.items() if bias),
        tuple(
            spelling
            for index, word in enumerate(params.bad_words)
            for spelling in _spellings(word, index, tokenizer, vocab_size)
        ),
    )
    neutral = (rules.presence, rules.frequency, rules.repetition) == (0.0, 0.0, 1.0)
    return None if neutral and not rules.bias and not rules.bad_words else rules


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
