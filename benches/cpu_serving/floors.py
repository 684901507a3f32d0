"""How fast the machine can read memory and multiply: the floors of a model step on the CPU."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from benches.cpu_serving.models import Shape

BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int8": 1 + 2 / 32, "int4": 0.5 + 2 / 32}
"""Bytes of a weight; a scale of two bytes for every 32."""


@dataclass(frozen=True)
class Floors:
    """What all cores reach together.

    Attributes:
        bandwidth: Bytes a second, read from memory.
        flops: Multiplications and additions a second, by data type of the weights. Integers have
            those of bfloat16.
    """

    bandwidth: float
    flops: dict[str, float]

    def tokens_per_s(
        self, shape: Shape, dtype: str, concurrency: int, prompt: int, output: int
    ) -> float:
        """Tokens a second if steps took no longer than reading weights and caches, or multiplying.

        A token out comes with ``prompt / output`` tokens in, which are computed in large steps and
        need no head.
        """
        flops = self.flops["float32" if dtype == "float32" else "bfloat16"]
        cache = shape.cache_elements * (prompt + output / 2) * min(BYTES[dtype], 2) * concurrency
        reading = (shape.matrices * BYTES[dtype] + cache) / self.bandwidth
        decode = max(reading, 2 * shape.matrices * concurrency / flops)
        prefill = 2 * shape.matrices * prompt / output * concurrency / flops
        return concurrency / (decode + prefill)


def measure(threads: int) -> Floors:
    """The floors of ``threads`` threads; about two seconds."""
    return Floors(
        bandwidth=_bandwidth(threads),
        flops={"float32": _float32_flops(), "bfloat16": _bfloat16_flops(threads)},
    )


def _bandwidth(threads: int) -> float:
    numbers = np.ones((threads, 64 << 20), np.float32)
    with ThreadPoolExecutor(threads) as pool:
        seconds = _best(lambda: list(pool.map(lambda row: np.dot(row, row), numbers)))
    return numbers.nbytes / seconds


def _float32_flops(size: int = 2048) -> float:
    left = np.ones((size, size), np.float32)
    right, out = left.copy(), left.copy()
    return 2 * size**3 / _best(lambda: np.matmul(left, right, out=out))


def _bfloat16_flops(threads: int, size: int = 2048) -> float:
    import torch

    torch.set_num_threads(threads)
    left = torch.ones(size, size, dtype=torch.bfloat16)
    out = left.clone()
    return 2 * size**3 / _best(lambda: torch.mm(left, left, out=out))


def _best(work: Callable[[], object], runs: int = 6) -> float:
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)
