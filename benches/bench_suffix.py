"""What remembering outputs and drafting from them costs per token, and its memory, at ten million.

Outputs of 1,000 tokens go into one tenant's history (two suffix automata, in Rust); then new
outputs are followed token by token, with a draft before each token. Two workloads: *repetitive*,
phrases of a few dozen tokens among single ones, as agents write them; and *random*, single tokens
only (Zipf), which is the hardest to index and holds nothing to find. The peer is plain Python: a
dict from the last four tokens to where they stood last, at a twentieth of the size, which favours
it. Times are of the thread's CPU, so that a busy machine changes them little.

    python benches/bench_suffix.py [--tokens N] [--json PATH]      (- is standard output)
"""

import argparse
from collections.abc import Iterator
from time import thread_time_ns

import numpy as np
from numpy.typing import NDArray

from benches.figures import json_option, write_json
from pyengine._core import Speculator

TOKENS = 10_000_000
OUTPUT = 1_000
VOCABULARY = 50_000
PIECE = 256  # tokens indexed at once, as beside a running step
REPLAYED = 100  # outputs
PEER_SHARE = 20

Tokens = NDArray[np.uint32]


def zipf(generator: np.random.Generator, count: int, size: int) -> Tokens:
    """``count`` numbers below ``size``, the small ones more often, shape [count]."""
    drawn: NDArray[np.float64] = np.exp(generator.random(count) * np.log(size)) - 1
    return drawn.astype(np.uint32)


def outputs(generator: np.random.Generator, count: int, *, repetitive: bool) -> Iterator[Tokens]:
    """``count`` outputs of 1,000 tokens each, shape [1000]."""
    pool = np.random.default_rng(1)
    phrases = [zipf(pool, int(length), VOCABULARY) for length in pool.integers(8, 48, 20_000)]
    for _ in range(count):
        if not repetitive:
            yield zipf(generator, OUTPUT, VOCABULARY)
            continue
        parts: list[Tokens] = []
        for chosen in zipf(generator, OUTPUT // 8, len(phrases)):
            parts += [phrases[int(chosen)], zipf(generator, 4, VOCABULARY)]
        yield np.concatenate(parts)[:OUTPUT].copy()


def peer_us(texts: list[Tokens]) -> float:
    """Microseconds per token of a Python dict of the last four tokens, added and looked up."""
    lists = [text.tolist() for text in texts]
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    start = thread_time_ns()
    for number, tokens in enumerate(lists):
        for at in range(4, len(tokens)):
            key = tuple(tokens[at - 4 : at])
            seen.get(key)
            seen[key] = (number, at)
    return (thread_time_ns() - start) / 1000 / sum(map(len, lists))


def bench(total: int, *, repetitive: bool) -> dict[str, float]:
    """Figures for a history of ``total`` tokens.

    *remember*: an output joins the history. *append*: a sequence goes on, its own index included.
    *propose*: a draft of up to 8 tokens. *piece*: 256 tokens remembered, the 99.9th percentile: no
    growing table makes one slow. Microseconds (per token but for the piece), bytes of memory.
    """
    generator = np.random.default_rng(2)
    speculator = Speculator(2 * total + OUTPUT)
    pieces: list[int] = []
    for text in outputs(generator, max(1, total // OUTPUT), repetitive=repetitive):
        speculator.remember(text)
        for _ in range(0, OUTPUT, PIECE):
            start = thread_time_ns()
            speculator.tend(PIECE)
            pieces.append(thread_time_ns() - start)
    held_tokens, held_bytes = speculator.memory()
    new = list(outputs(generator, REPLAYED, repetitive=repetitive))
    followed = sum(len(text) for text in new)
    start = thread_time_ns()
    for text in new:
        speculator.replay(text, False)
    append_us = (thread_time_ns() - start) / 1000 / followed
    drafted = right = 0
    start = thread_time_ns()
    for text in new:
        counts = speculator.replay(text, True)
        drafted, right = drafted + counts[0], right + counts[1]
    both_us = (thread_time_ns() - start) / 1000 / followed
    peer = list(outputs(generator, max(1, total // OUTPUT // PEER_SHARE), repetitive=repetitive))
    remember_us = sum(pieces) / 1000 / held_tokens
    python_us = peer_us(peer)
    return {
        "tokens": held_tokens,
        "remember_us": remember_us,
        "append_us": append_us,
        "propose_us": both_us - append_us,
        "piece_p999_us": float(np.percentile(pieces, 99.9)) / 1000,
        "drafted_per_proposal": drafted / followed,
        "acceptance": right / drafted if drafted else 0.0,
        "memory_bytes": held_bytes,
        "bytes_per_token": held_bytes / held_tokens,
        "python_dict_us": python_us,
        "python_over_remember": python_us / remember_us,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--tokens", type=int, default=TOKENS, help="tokens of history, at least 1,000"
    )
    json_option(parser)
    arguments = parser.parse_args()
    result = {
        name: bench(arguments.tokens, repetitive=name == "repetitive")
        for name in ("repetitive", "random")
    }
    if not write_json(result, arguments.json):
        return
    for name, figures in result.items():
        print(name)
        for figure, value in figures.items():
            print(f"  {figure:24} {value:16,.2f}")


if __name__ == "__main__":
    main()
