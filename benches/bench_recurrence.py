"""Do the recurrences of layers with states run at the speed of the memory, or of the multipliers?

All layers with states of a model, one behind another, by rows of one token and by a row of a
prompt: together their states are larger than the caches, as they are in a decode. Beside each: the
floor, which is the larger of reading and writing the states at the bandwidth measured in this run
and multiplying at the rate of a loop from registers; and the most that the recurrence may be of a
step: its share of its own time and of reading the model's weights once. ``--json -`` prints the
figures as JSON, ``--quick`` measures less.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benches.bench_linear import least_ms
from benches.figures import json_option, write_json
from pyengine._core import (
    CpuKernels,
    CpuProgram,
    CpuStates,
    CpuTensor,
    machine_peaks,
    step_numbers,
)

STEPS = ((1, 1), (4, 1), (16, 1), (1, 512))
"""Rows, and tokens of each."""

WEIGHT_BYTES = {"bfloat16": 2.0, "int4": 5 / 8}
"""Of a weight, its share of a scale included."""


@dataclass(frozen=True)
class Model:
    """The layers with states of a model.

    Attributes:
        layers: How many there are.
        heads: Of values.
        key_heads: Of queries and keys.
        dim: Elements of a key.
        value_dim: Elements of a value.
        delta: Whether it is the delta rule; else the decaying sum.
        parameters: Of the model that a token is multiplied with.
    """

    layers: int
    heads: int
    key_heads: int
    dim: int
    value_dim: int
    delta: bool
    parameters: float

    @property
    def matrices(self) -> int:
        """Floats of a state."""
        return self.heads * self.dim * self.value_dim


MODELS = {
    "Qwen3.5-0.8B": Model(18, 16, 16, 128, 128, True, 0.75e9),
    "Qwen3.5-35B-A3B": Model(30, 32, 16, 128, 128, True, 3e9),
    "granite-4.0-h-tiny": Model(36, 48, 1, 128, 64, False, 1e9),
}


def program(kernels: CpuKernels, model: Model, rows: int, tokens: int) -> CpuProgram:
    """The recurrences of all layers over a step of ``rows`` rows of ``tokens`` tokens."""
    header = np.zeros(len(step_numbers()), np.int64)
    header[step_numbers()["num_rows"]], header[step_numbers()["num_tokens"]] = rows, rows * tokens
    none = np.zeros(rows, np.int32)
    slots = np.arange(rows, dtype=np.int32)
    pool = np.zeros((rows, model.layers * model.matrices), np.float32)
    starts = np.arange(rows + 1, dtype=np.int32) * tokens
    states = CpuStates(header, starts, slots, slots, none, none, none - 1, none, pool, 0)

    keys, values = model.key_heads * model.dim, model.heads * model.value_dim
    random = np.random.default_rng(0)

    def columns(*widths: int) -> list[CpuTensor]:
        buffer = random.standard_normal((rows * tokens, sum(widths)), np.float32)
        return [CpuTensor(each) for each in np.split(buffer, np.cumsum(widths)[:-1], axis=1)]

    q, k, v = columns(keys, keys, values)
    a, b = columns(model.heads, model.heads)
    rates, bias = (CpuTensor(np.ones(model.heads, np.float32)) for _ in range(2))
    out = CpuTensor(np.zeros((rows * tokens, values), np.float32))
    made = CpuProgram(kernels)
    for layer in range(model.layers):
        place = layer * model.matrices, layer * model.matrices
        if model.delta:
            made.delta_rule(
                states, place, q, k, v, a, b, rates, bias, out,
                key_heads=model.key_heads, scale=model.dim**-0.5,
            )  # fmt: skip
        else:
            made.decay_sum(
                states, place, q, k, v, a, rates, bias, rates, out, key_heads=model.key_heads
            )
    return made


def figures(threads: int, quick: bool) -> dict[str, Any]:
    """All figures of the bench."""
    kernels = CpuKernels(threads)
    rate, _, _, bandwidth = machine_peaks(threads)
    runs = []
    for name, model in list(MODELS.items())[: 1 if quick else None]:
        for rows, tokens in STEPS:
            call = partial(program(kernels, model, rows, tokens).run, rows * tokens)
            ms = least_ms(call)
            numbers = model.layers * model.matrices * rows
            moving = 2 * 4 * numbers / bandwidth * 1e3
            products = (3 if model.delta else 2) * numbers * tokens
            multiplying = products / rate * 1e3 if rate else 0.0
            floor = max(moving, multiplying)
            weights = {
                dtype: model.parameters * size / bandwidth * 1e3
                for dtype, size in WEIGHT_BYTES.items()
            }
            runs.append(
                {
                    "model": name,
                    "rows": rows,
                    "tokens": tokens,
                    "ms": ms,
                    "floor_ms": floor,
                    "floor_ratio": ms / floor,
                    "most_of_step": {
                        dtype: ms / (ms + reading) for dtype, reading in weights.items()
                    },
                }
            )
    machine = {"bytes_per_s": bandwidth, "multiply_adds_per_s": rate}
    return {"threads": threads, "machine": machine, "runs": runs}


def main() -> None:
    """Print or write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="the first model alone")
    json_option(parser)
    options = parser.parse_args()
    found = figures(options.threads, options.quick)
    if write_json(found, options.json):
        print(f"{'model':20}{'rows':>5}{'tokens':>7}{'ms':>9}{'floor':>9}{'ratio':>7}", end="")
        print("  of a step at most")
        for run in found["runs"]:
            shares = ", ".join(
                f"{share:.0%} ({dtype})" for dtype, share in run["most_of_step"].items()
            )
            print(
                f"{run['model']:20}{run['rows']:5}{run['tokens']:7}{run['ms']:9.2f}"
                f"{run['floor_ms']:9.2f}{run['floor_ratio']:7.2f}  {shares}"
            )


if __name__ == "__main__":
    main()
