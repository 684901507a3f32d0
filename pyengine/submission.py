"""From what a caller asks to the message that asks the Scheduler: checked, tokenized, counted.

::

    prompt, params, options ──► check ──► token ids ──► what fits the context ──► Submit
"""

import hashlib
import secrets
import time
from array import array
from collections.abc import Sequence

from pyengine._core import Stage, Timeline
from pyengine.edits import edit_rules
from pyengine.engine import EngineInfo
from pyengine.errors import ContextLengthError, InvalidGrammarError, InvalidRequestError
from pyengine.grammar.description import Grammar
from pyengine.messages import RequestKey, SamplingRules, Submit
from pyengine.sampling import SamplingParams, check_priority
from pyengine.tokenizer import PREDICTED_CHARACTERS, Tokenizer

# As much as the compiler takes; a longer one would crowd the Scheduler's mailbox for nothing.
MAX_GRAMMAR_BYTES = 1 << 20
MAX_TIMEOUT_S = 30 * 24 * 3600


class Intake:
    """Makes requests for a running engine. Lives on the loop of those who ask.

    Attributes:
        tokenizer: The model's.
        timeline: Where tokenizing is noted.
    """

    def __init__(self, tokenizer: Tokenizer, timeline: Timeline) -> None:
        self.tokenizer = tokenizer
        self.timeline = timeline

    def tokens(self, text: str, info: EngineInfo, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a prompt.

        Raises:
            ContextLengthError: It is so long that it cannot fit the context.
        """
        self.timeline.begin()
        self.tokenizer.check_length(text, info.max_context)
        token_ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        self.timeline.lap(Stage.TOKENIZE)
        return token_ids

    def submit(
        self,
        key: RequestKey,
        prompt: str | Sequence[int],
        params: SamplingParams,
        info: EngineInfo,
        *,
        priority: int = 0,
        tenant: str | None = None,
        cache_salt: str | None = None,
        timeout: float | None = None,
        grammar: Grammar | None = None,
        close_grammar: bool = False,
        prediction: str | Sequence[int] | None = None,
    ) -> Submit:
        """The message that begins request ``key``.

        Takes and raises what :meth:`pyengine.AsyncEngine.generate` does.
        """
        params.validate()
        check_priority(priority)
        description = _description(grammar, close_grammar)
        if timeout is not None and not 0 < timeout <= MAX_TIMEOUT_S:
            raise InvalidRequestError(
                f"'timeout' must be above 0 and at most {MAX_TIMEOUT_S} seconds", param="timeout"
            )
        token_ids = self.tokens(prompt, info) if isinstance(prompt, str) else list(prompt)
        max_tokens = _max_tokens(token_ids, params, info)
        now = time.monotonic_ns()
        return Submit(
            key=key,
            tokens=array("I", token_ids).tobytes(),
            prompt_length=len(token_ids),
            max_tokens=max_tokens,
            min_tokens=params.min_tokens,
            sampling=_sampling_rules(params),
            stop_token_ids=(
                *(() if params.ignore_eos else self.tokenizer.eos_token_ids),
                *params.stop_token_ids,
            ),
            stop=params.stop,
            include_stop=params.include_stop,
            skip_special_tokens=params.skip_special_tokens,
            priority=priority,
            tenant=_number(tenant),
            cache_salt=_number(cache_salt),
            arrival_ns=now,
            deadline_ns=0 if timeout is None else now + int(timeout * 1e9),
            grammar=description,
            close_grammar=close_grammar,
            prediction=self._prediction(prediction, info),
            edits=edit_rules(params, self.tokenizer, info.vocab_size),
            logprobs=params.logprobs,
        )

    def _prediction(self, prediction: str | Sequence[int] | None, info: EngineInfo) -> bytes:
        """The tokens of a prediction, as messages carry them."""
        if prediction is None:
            return b""
        if isinstance(prediction, str):
            # A prediction that is longer than any answer can be is of no use beyond that.
            prediction = prediction[: info.max_context * PREDICTED_CHARACTERS]
            prediction = self.tokenizer.encode(prediction, add_special_tokens=False)
        elif not all(0 <= token < info.vocab_size for token in prediction):
            raise InvalidRequestError(
                f"token ids must be from 0 to {info.vocab_size - 1}", param="prediction"
            )
        return array("I", prediction[: info.max_context]).tobytes()


def _max_tokens(token_ids: Sequence[int], params: SamplingParams, info: EngineInfo) -> int:
    """How many tokens the request may get; refuses what cannot fit."""
    if not token_ids:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    if not all(0 <= token < info.vocab_size for token in token_ids):
        raise InvalidRequestError(
            f"token ids must be from 0 to {info.vocab_size - 1}", param="prompt"
        )
    if not all(token < info.vocab_size for token in params.stop_token_ids):
        raise InvalidRequestError(
            f"'stop_token_ids' must be from 0 to {info.vocab_size - 1}", param="stop_token_ids"
        )
    room = info.max_context - len(token_ids)
    wanted = room if params.max_tokens is None else params.max_tokens
    if room < 1 or wanted > room:
        asked = f" and {wanted} to generate" if room >= 1 else ""
        raise ContextLengthError(
            f"the context is {info.max_context} tokens; the prompt has {len(token_ids)}{asked}",
            param="max_tokens" if room >= 1 else "prompt",
        )
    return wanted


def _sampling_rules(params: SamplingParams) -> SamplingRules:
    """How tokens are drawn; a request without a seed gets one at random."""
    return SamplingRules(
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        secrets.randbits(64) if params.seed is None else params.seed % 2**64,
    )


def _description(grammar: Grammar | None, close: bool) -> bytes | None:
    """What is compiled; refused where it is too long to be sent."""
    if not isinstance(close, bool):
        raise InvalidRequestError("'close_grammar' must be a bool", param="close_grammar")
    if grammar is None:
        if close:
            raise InvalidRequestError(
                "'close_grammar' needs a grammar to close.", param="close_grammar"
            )
        return None
    if not isinstance(grammar, Grammar):
        raise InvalidRequestError(
            f"'grammar' must be a Grammar, such as json_schema(...), not {type(grammar).__name__}",
            param="grammar",
            code="invalid_type",
        )
    description = grammar.description()
    if len(description) > MAX_GRAMMAR_BYTES:
        raise InvalidGrammarError(
            f"the grammar's description has {len(description)} bytes; "
            f"at most {MAX_GRAMMAR_BYTES} are taken",
            param="grammar",
        )
    return description


def _number(name: str | None) -> int:
    """A stable 64-bit number for a name; 0 for none."""
    if name is None:
        return 0
    if not isinstance(name, str):
        raise InvalidRequestError(f"tenant and cache_salt are strings, not {name!r}")
    encoded = name.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")
