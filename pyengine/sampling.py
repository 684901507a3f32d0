"""How a request's tokens are chosen and when it ends."""

import math
import re
import struct

import msgspec

from pyengine._core import sampling_row
from pyengine.errors import InvalidRequestError
from pyengine.validation.rules import Rule, broken

MODEL_DEFAULTS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
"""Parameters that a model's generation_config.json may give, for requests that leave them out."""

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKENS = 128
MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LENGTH = 256
MAX_BREAKERS = 64
MAX_BREAKER_LENGTH = 64


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters of one request.

    Rules apply in this order: repetition penalty, presence and frequency penalties, DRY, bias and
    bad words, the masks of a grammar and of allowed tokens, top-n-sigma, temperature, top-k, top-p,
    min-p, typical-p, XTC; each sees what the one before it left. Random numbers are counter-based,
    keyed by (seed, position of the token), so a seed gives the same tokens in whatever batch the
    request runs.

    Attributes:
        temperature: Divides the logits, from 0 to 2; 0 takes the most likely token, more is more
            varied.
        top_k: Keep this many most likely tokens; 0 keeps all.
        top_p: Keep the fewest tokens whose probabilities reach this; 1 keeps all.
        min_p: Drop tokens less likely than this times the most likely one; 0 keeps all.
        typical_p: Keep the tokens of the most typical probability that together reach this, above 0
            and at most 1; 1 keeps all. Typical is what surprises as much as the rules before leave
            one to expect: least |-ln p - H|, H the entropy of p. Tokens that differ in it by less
            than 2^-14 may stay together. Meister et al., "Locally Typical Sampling", 2023.
        top_n_sigma: Keep the tokens whose logits are within this many standard deviations of the
            largest, the logits' own; 0 keeps all. Does not depend on the temperature. Tang et al.,
            "Top-nσ", 2024.
        dynatemp_range: Lets the temperature follow the entropy of the distribution: from this much
            below ``temperature``, though not below 0, where one token is certain, to this much
            above it where all that are possible are equally likely; 0 is off. A temperature of 0
            stays.
        dynatemp_exponent: The power of the entropy, as a share of the greatest possible, by which
            the dynamic temperature rises; above 0.
        xtc_probability: The chance, at each token, that the likely tokens are dropped but for the
            least likely of them; 0 is never. "Exclude top choices", P. E. Weidmann, 2024.
        xtc_threshold: The probability from which on a token is likely in that sense, from 0 to 1;
            above 0.5 no two tokens are, and nothing is dropped.
        dry_multiplier: Taken from the logit of a token that would repeat a sequence of
            ``dry_allowed_length`` tokens, times ``dry_base`` for each token that the sequence is
            longer, up to 50; 0 is off. "Don't repeat yourself", P. E. Weidmann, 2024.
        dry_base: By what that grows with a token, at least 1.
        dry_allowed_length: How long a repeated sequence is at least that counts.
        dry_penalty_last_n: How many of the last tokens, the prompt's too, are searched for
            sequences; -1 is all, 0 none.
        dry_sequence_breakers: Texts at which sequences end: no token that contains one is part of a
            sequence or penalized.
        presence_penalty: Taken from the logit of every token that was generated, from -2 to 2; 0 is
            off.
        frequency_penalty: Taken from a token's logit as often as it was generated, from -2 to 2; 0
            is off.
        repetition_penalty: Divides positive logits of tokens that are in the prompt or the answer,
            and multiplies negative ones; 1 is off, more repeats less. Keskar et al., "CTRL", 2019.
        logit_bias: Added to the logits of tokens, by their ids, from -100 to 100.
        bad_words: Texts that the answer must not contain. They are forbidden in their usual tokens
            at the beginning of a text and behind a space: the last of these is never chosen where
            the others stand before it, be they the prompt's. Where a grammar leaves no other token,
            it is chosen all the same; where all that a grammar allows is forbidden, the request
            fails.
        allowed_token_ids: The only tokens that the answer may have; None allows all. The model's
            end-of-sequence tokens are no exception. Where a grammar allows none of them, the
            request fails.
        seed: Key of the random numbers: the same one gives the same tokens; without it, one is
            taken at random.
        max_tokens: Most tokens to generate; without it, up to the end of the context. With 0 the
            prompt alone is computed: for the cache, or for its log-probabilities.
        min_tokens: Fewest tokens before an end-of-sequence or stop token ends the request; at most
            ``max_tokens``. Under a grammar those tokens are held back while the grammar lets the
            answer go on; where it does not, the answer ends, shorter than this.
        stop: Text that ends the answer, one string or several; not part of the text unless
            ``include_stop``.
        stop_token_ids: Tokens that end the request beside the model's own.
        ignore_eos: Go on past the model's end-of-sequence tokens.
        include_stop: Leave the stop string that matched in the text.
        skip_special_tokens: Leave special tokens out of the text.
        logprobs: Tell the log-probability of every token of the text, and of this number of the
            most likely tokens in its place, 0 to 20: the log-softmax of the model's logits as they
            are, before any of the rules above. None tells nothing.

    Raises:
        InvalidRequestError: By :meth:`validate`, naming the parameter.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            msgspec.structs.force_setattr(self, "stop", (self.stop,))

    def validate(self) -> None:
        """Raise :class:`InvalidRequestError` for the first parameter of a wrong type or value."""
        try:
            msgspec.convert(msgspec.structs.asdict(self), SamplingParams)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `")
            name = re.split(r"[^\w]", path.partition("$.")[2], maxsplit=1)[0]
            raise InvalidRequestError(f"'{name}': {reason}", param=name) from None
        if (wrong := broken(_RULES, self)) is not None:
            name, message = wrong
            raise InvalidRequestError(message, param=name)


def bound(name: str) -> str | None:
    """What a sampling parameter must be, in words; None where no rule says so."""
    words = (rule.wanted for rule in _RULES if rule.name == name and "{" not in rule.wanted)
    return next(words, None)


_RULES: tuple[Rule[SamplingParams], ...] = (
    Rule("temperature", "between 0 and 2", lambda p: 0.0 <= p.temperature <= 2.0),
    Rule("top_k", "0 (off) or a positive integer", lambda p: 0 <= p.top_k < 2**31),
    Rule("top_p", "above 0 and at most 1", lambda p: 0.0 < p.top_p <= 1.0),
    Rule("min_p", "between 0 and 1", lambda p: 0.0 <= p.min_p <= 1.0),
    Rule("typical_p", "above 0 and at most 1", lambda p: 0.0 < p.typical_p <= 1.0),
    Rule("top_n_sigma", "0 (off) or more", lambda p: 0.0 <= p.top_n_sigma < math.inf),
    Rule("dynatemp_range", "between 0 and 2", lambda p: 0.0 <= p.dynatemp_range <= 2.0),
    Rule("dynatemp_exponent", "above 0, at most 100", lambda p: 0.0 < p.dynatemp_exponent <= 100.0),
    Rule("xtc_probability", "between 0 and 1", lambda p: 0.0 <= p.xtc_probability <= 1.0),
    Rule("xtc_threshold", "between 0 and 1", lambda p: 0.0 <= p.xtc_threshold <= 1.0),
    Rule("dry_multiplier", "between 0 and 100", lambda p: 0.0 <= p.dry_multiplier <= 100.0),
    Rule("dry_base", "from 1 to 100", lambda p: 1.0 <= p.dry_base <= 100.0),
    Rule("dry_allowed_length", "from 0 to 1000", lambda p: 0 <= p.dry_allowed_length <= 1000),
    Rule(
        "dry_penalty_last_n",
        "-1 (all tokens) or more, below 2**31",
        lambda p: -1 <= p.dry_penalty_last_n < 2**31,
    ),
    Rule(
        "dry_sequence_breakers",
        f"at most {MAX_BREAKERS} strings of 1 to {MAX_BREAKER_LENGTH} characters",
        lambda p: (
            len(p.dry_sequence_breakers) <= MAX_BREAKERS
            and all(0 < len(text) <= MAX_BREAKER_LENGTH for text in p.dry_sequence_breakers)
        ),
    ),
    Rule("presence_penalty", "between -2 and 2", lambda p: -2.0 <= p.presence_penalty <= 2.0),
    Rule("frequency_penalty", "between -2 and 2", lambda p: -2.0 <= p.frequency_penalty <= 2.0),
    Rule("repetition_penalty", "from 0.01 to 100", lambda p: 0.01 <= p.repetition_penalty <= 100.0),
    Rule("logit_bias", f"at most {MAX_BIASES} tokens", lambda p: len(p.logit_bias) <= MAX_BIASES),
    Rule(
        "logit_bias",
        "token ids of 0 or more, each with a bias between -100 and 100",
        lambda p: all(
            0 <= token < 2**31 and -100.0 <= bias <= 100.0 for token, bias in p.logit_bias.items()
        ),
    ),
    Rule(
        "bad_words", f"at most {MAX_BAD_WORDS} strings", lambda p: len(p.bad_words) <= MAX_BAD_WORDS
    ),
    Rule(
        "bad_words",
        f"strings of 1 to {MAX_BAD_WORD_LENGTH} characters",
        lambda p: all(0 < len(word) <= MAX_BAD_WORD_LENGTH for word in p.bad_words),
    ),
    Rule(
        "allowed_token_ids",
        "at least one token id, each 0 or more",
        lambda p: (
            p.allowed_token_ids is None
            or (len(p.allowed_token_ids) > 0 and all(0 <= t < 2**31 for t in p.allowed_token_ids))
        ),
    ),
    Rule(
        "logprobs",
        f"from 0 to {MAX_LOGPROBS}",
        lambda p: p.logprobs is None or 0 <= p.logprobs <= MAX_LOGPROBS,
    ),
    Rule("seed", "a 64-bit integer", lambda p: p.seed is None or -(2**63) <= p.seed < 2**63),
    Rule(
        "max_tokens",
        "at least 1, below 2**31",
        lambda p: p.max_tokens is None or 0 <= p.max_tokens < 2**31,
    ),
    Rule("min_tokens", "0 or more, below 2**31", lambda p: 0 <= p.min_tokens < 2**31),
    Rule(
        "min_tokens",
        "at most 'max_tokens' ({given.max_tokens})",
        lambda p: p.max_tokens is None or p.min_tokens <= p.max_tokens,
    ),
    Rule("stop", f"at most {MAX_STOP_STRINGS} strings", lambda p: len(p.stop) <= MAX_STOP_STRINGS),
    Rule(
        "stop",
        f"strings of 1 to {MAX_STOP_LENGTH} characters",
        lambda p: all(0 < len(text) <= MAX_STOP_LENGTH for text in p.stop),
    ),
    Rule(
        "stop_token_ids",
        f"at most {MAX_STOP_TOKENS} token ids",
        lambda p: len(p.stop_token_ids) <= MAX_STOP_TOKENS,
    ),
    Rule(
        "stop_token_ids",
        "token ids of 0 or more",
        lambda p: all(0 <= token < 2**31 for token in p.stop_token_ids),
    ),
)


def check_priority(priority: int) -> None:
    """Raise :class:`InvalidRequestError` unless ``priority`` is a 32-bit integer."""
    if not isinstance(priority, int) or not -(2**31) <= priority < 2**31:
        raise InvalidRequestError("'priority' must be a 32-bit integer", param="priority")


def pack_sampling(params: SamplingParams, seed: int) -> bytes:
    """How tokens are chosen, as a row of :func:`pyengine._core.sampling_row`.

    Args:
        params: The other rules, within their ranges.
        seed: A number of 64 bits, not below 0.
    """
    rules = (seed if name == "seed" else getattr(params, name) for name in _ROW["names"])
    return _row.pack(*rules)


def _row_format() -> str:
    """The format of a row for :mod:`struct`."""
    codes = {"float32": "f", "int32": "i", "uint64": "Q"}
    packed = "=" + "".join(codes[kind] for kind in _ROW["formats"])
    return f"{packed}{_ROW['itemsize'] - struct.calcsize(packed)}x"


_ROW = sampling_row()
_row = struct.Struct(_row_format())
