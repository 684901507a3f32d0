"""How fast the machine can read memory and multiply: the floors of a model step on the CPU."""

from dataclasses import dataclass

from benches.cpu_serving.models import Shape
from pyengine._core import machine_peaks

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
    """The floors of ``threads`` threads, which multiply from registers; about a second."""
    floats, halves, _, bandwidth = machine_peaks(threads)
    if floats is None:
        raise SystemExit("The floors need a processor with AVX2: other ones are not measured.")
    # Without an instruction for bfloat16, its numbers are multiplied as float32.
    flops = {"float32": 2 * floats, "bfloat16": 2 * (halves or floats)}
    return Floors(bandwidth=bandwidth, flops=flops)
