"""Requests of given lengths, that come at a rate or all at once."""

import numpy as np

from pyengine.profiling.workload import Job, tokens


def arrivals(
    count: int,
    *,
    rate: float | None,
    prompt_tokens: int,
    answer_tokens: int,
    vocab_size: int,
    seed: int,
) -> list[Job]:
    """``count`` requests, no two prompts alike.

    Args:
        count: How many.
        rate: A second, as a Poisson process: gaps are exponential. None sends all at once.
        prompt_tokens: The length of each prompt.
        answer_tokens: The length of each answer.
        vocab_size: Token ids are below this.
        seed: The seed of gaps and tokens.
    """
    gaps = np.zeros(count)
    if rate is not None:
        gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    return [
        Job(float(at), tokens(seed * count + number, prompt_tokens, vocab_size), answer_tokens)
        for number, at in enumerate(np.cumsum(gaps) - gaps[0])
    ]
