"""What does a mixture of experts cost on the CPU beside a dense layer with as many active weights?

A layer of the sizes of Qwen3-30B-A3B (8 experts a token, 768 wide each) and a dense one that is
8 x 768 wide, by number of rows. With one row both read as many weights. With more, rows choose
different experts, so that more weights are read, each for fewer rows: *apart* calls the same
experts as one dense layer each, each with its rows, and has no routing, sorting and sums. Both are
ratios of times that were taken in turn (:mod:`benches.paired`). ``--json -`` prints the figures as
JSON.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benches.bench_linear import narrow
from benches.figures import json_option, write_json
from benches.paired import ratio_of
from pyengine._core import CpuExperts, CpuKernels, CpuLinear, CpuProgram, CpuTensor
from pyengine.model.dtypes import cpu_tensor

HIDDEN, INNER, CHOSEN = 2048, 768, 8
ROWS = (1, 4, 16, 64)
DTYPES = ("float32", "bfloat16", "int8", "int4", "mxfp4")
GROUP = 32
ROUNDS = 8
Numbers = np.ndarray[Any, np.dtype[np.float32]]


class Dense:
    """A feed-forward layer with gates."""

    def __init__(self, kernels: CpuKernels, dtype: str, inner: int) -> None:
        self._kernels, self._inner, self._narrow = kernels, inner, dtype == "bfloat16"
        self.gate_up = linear(dtype, HIDDEN, 2 * inner)
        self.down = linear(dtype, inner, HIDDEN)

    def call(self, rows: int) -> Callable[[], None]:
        """The layer on ``rows`` rows."""
        x, gates, inner, out = (
            numbers(drawn(rows, width), self._narrow)
            for width in (HIDDEN, 2 * self._inner, self._inner, HIDDEN)
        )

        program = CpuProgram(self._kernels)
        program.linear(self.gate_up, x, gates)
        program.gated("silu", gates, inner)
        program.linear(self.down, inner, out)
        return partial(program.run, rows)


class Mixture:
    """A mixture of experts, whose rows choose at random."""

    def __init__(self, kernels: CpuKernels, dtype: str, experts: int) -> None:
        self._kernels, self._count, self._narrow = kernels, experts, dtype == "bfloat16"
        self._layers = [Dense(kernels, dtype, INNER) for _ in range(experts)]
        self._experts = CpuExperts(
            [layer.gate_up for layer in self._layers],
            [layer.down for layer in self._layers],
            "silu",
            chosen=CHOSEN,
            normalized=True,
        )

    def call(self, rows: int) -> Callable[[], None]:
        """The layer on ``rows`` rows."""
        logits = numbers(self._scores(rows), self._narrow)
        x, out = (numbers(drawn(rows, HIDDEN), self._narrow) for _ in range(2))
        program = CpuProgram(self._kernels)
        program.experts(self._experts, logits, x, out)
        return partial(program.run, rows)

    def apart(self, rows: int) -> Callable[[], None]:
        """The experts that those rows choose, each as a layer of its own."""
        chosen = np.argsort(-self._scores(rows), axis=1)[:, :CHOSEN]
        counts = np.bincount(chosen.ravel(), minlength=self._count)
        calls = [
            layer.call(int(count))
            for layer, count in zip(self._layers, counts, strict=True)
            if count
        ]

        def run() -> None:
            for call in calls:
                call()

        return run

    def _scores(self, rows: int) -> Numbers:
        return drawn(rows, self._count)


def linear(dtype: str, inputs: int, outputs: int) -> CpuLinear:
    """A linear layer of random weights."""
    random = np.random.default_rng(inputs + outputs)
    if dtype == "mxfp4":
        values = random.integers(0, 256, (outputs, inputs // 2), np.uint8)
        exponents = np.full((outputs, inputs // GROUP), 120, np.uint8)
        return CpuLinear.microscaled(CpuTensor(values), CpuTensor(exponents))
    if dtype in ("int8", "int4"):
        bits = int(dtype[3:])
        values = random.integers(0, 256, (outputs, inputs * bits // 8), np.uint8)
        scales = np.full((outputs, inputs // GROUP), 0.01, np.float32)
        return CpuLinear.packed(CpuTensor(values), CpuTensor(scales), None, None, bits, GROUP)
    weight = random.standard_normal((outputs, inputs), np.float32)
    return CpuLinear.dense(cpu_tensor(narrow(weight) if dtype == "bfloat16" else weight))


def drawn(rows: int, width: int) -> Numbers:
    """Random activations, always the same."""
    return np.random.default_rng(rows + width).standard_normal((rows, width), np.float32)


def numbers(made: Numbers, halves: bool) -> CpuTensor:
    """Activations of the layer's type."""
    return cpu_tensor(narrow(made) if halves else made)


def seconds(call: Callable[[], None], repeats: int) -> float:
    """Seconds of a number of calls."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - start


def compared(mixture: Callable[[], None], other: Callable[[], None]) -> dict[str, float]:
    """The least milliseconds of both, and how many times the other's time the mixture takes."""
    repeats = max(1, int(0.01 / max(seconds(other, 2) / 2, 1e-6)))
    ratios, least = [], [float("inf")] * 2
    for _ in range(ROUNDS):
        sums = [0.0, 0.0]
        for which in (0, 1, 1, 0, 0, 1, 1, 0):
            took = seconds((mixture, other)[which], repeats)
            sums[which] += took
            least[which] = min(least[which], took / repeats)
        ratios.append(sums[0] / sums[1])
    found = ratio_of(ratios)
    times = {"experts_ms": least[0] * 1e3, "other_ms": least[1] * 1e3}
    return times | {"ratio": found.value, "low": found.low, "high": found.high}


def figures(threads: int, experts: int, dtypes: list[str]) -> dict[str, Any]:
    """All figures of the bench."""
    kernels, runs = CpuKernels(threads), []
    for dtype in dtypes:
        mixture, dense = Mixture(kernels, dtype, experts), Dense(kernels, dtype, CHOSEN * INNER)
        for rows in ROWS:
            call = mixture.call(rows)
            found = {
                "dense": compared(call, dense.call(rows)),
                "apart": compared(call, mixture.apart(rows)),
            }
            runs.append({"dtype": dtype, "rows": rows, **found})
    return {"threads": threads, "experts": experts, "runs": runs}


def main() -> None:
    """Print or write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--experts", type=int, default=32, help="experts of the layer")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="[default: all]")
    json_option(parser)
    options = parser.parse_args()
    found = figures(options.threads, options.experts, options.dtype or list(DTYPES))
    if not write_json(found, options.json):
        return
    print(f"{'type':9}{'rows':>5}{'experts':>11}{'of a dense layer':>26}{'of experts apart':>26}")
    for run in found["runs"]:
        dense, apart = (
            f"{run[name]['ratio']:12.2f} ({run[name]['low']:.2f} to {run[name]['high']:.2f})"
            for name in ("dense", "apart")
        )
        print(f"{run['dtype']:9}{run['rows']:5}{run['dense']['experts_ms']:8.3f} ms{dense}{apart}")


if __name__ == "__main__":
    main()
