"""Log-probabilities of a prompt's own tokens.

::

    prompt  a b c d      request 1   a b c │ d      the cache has its blocks from here on
                         request 2   a     │ b      cached but for the last block's tokens
                         request 3   a b   │ c

Each token is the one-token answer of a request whose prompt are the tokens before it; a bias leaves
that token alone, and log-probabilities are those of the logits without it. The longest goes first
and fills the cache; the others find all of their prompt there but for its last block, and share
steps. So nothing is kept of the logits, the device needs no kernel of its own, and a prefix that
was cached before is as good as a new one. A token costs half a block of prompt tokens on average.
"""

import asyncio
from collections.abc import Callable, Sequence

from pyengine.errors import RequestAbortedError
from pyengine.logprobs import TokenLogprob
from pyengine.request.generation import Generation
from pyengine.request.submission import RequestOptions
from pyengine.sampling import SamplingParams

# Far above any difference of logits; what it is added to is reported without it.
_ALONE = 1e30
# Requests at a time: enough to fill a step, few enough to leave others room in the queue.
_WAVE = 64

Begin = Callable[[Sequence[int], SamplingParams, RequestOptions], Generation]


async def prompt_logprobs(
    begin: Begin,
    token_ids: Sequence[int],
    top: int,
    options: RequestOptions,
    gone: Callable[[], bool] = lambda: False,
) -> list[TokenLogprob | None]:
    """The log-probability of each token after those before it; None for the first.

    Args:
        begin: Begins a request.
        token_ids: The prompt.
        top: How many most likely tokens are told beside each.
        options: Of the request that the prompt belongs to; its grammar must be None.
        gone: Whether nobody waits for them any more.

    Raises:
        PyengineError: As of any request.
    """
    found: list[TokenLogprob | None] = [None] * len(token_ids)
    places = list(range(len(token_ids) - 1, 0, -1))
    waves = [places[:1], *(places[at : at + _WAVE] for at in range(1, len(places), _WAVE))]
    for wave in waves:
        if gone():
            raise RequestAbortedError("the request was aborted")
        asked = [begin(token_ids[:place], alone(token_ids[place], top), options) for place in wave]
        try:
            for place, generation in zip(wave, asked, strict=True):
                await generation
                (found[place],) = generation.token_logprobs()
        except asyncio.CancelledError:
            for generation in asked:
                generation.abort()
            raise
    return found


def alone(token: int, top: int) -> SamplingParams:
    """The parameters of a request whose answer is ``token``, with ``top`` likely ones told."""
    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        logit_bias={token: _ALONE},
        ignore_eos=True,
        skip_special_tokens=False,
        logprobs=top,
    )
