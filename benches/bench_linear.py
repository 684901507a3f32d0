"""Do linear layers on the CPU run at the speed of the memory, or of the multipliers?

Layers of 4096 to 4096 by number of rows, in float32, bfloat16, int8 and int4 (groups of 32). Beside
each: the floor, which is the larger of reading the weights at the bandwidth measured in this run
and multiplying at the rate of a loop from registers; and torch's ``mm``, if torch is installed and
has the type. ``--json -`` prints the figures as JSON.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np

from benches.figures import json_option, write_json
from pyengine._core import (
    CpuKernels,
    CpuLinear,
    CpuProgram,
    CpuTensor,
    instruction_set,
    machine_peaks,
)
from pyengine.model.dtypes import cpu_tensor

ROWS = (1, 4, 8, 16, 64, 512)
SIZE = 4096
GROUP = 32
SECONDS_PER_FIGURE = 0.3
BITS = {"float32": 32, "bfloat16": 16, "int8": 9, "int4": 5}
"""Of a weight, its share of a scale included."""


def least_ms(call: Callable[[], object]) -> float:
    """Milliseconds of the fastest call: others lost time to something else."""
    call()
    times: list[float] = []
    end = time.perf_counter() + SECONDS_PER_FIGURE
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def layer(dtype: str, size: int) -> CpuLinear:
    """A layer of random weights."""
    random = np.random.default_rng(0)
    if dtype in ("int8", "int4"):
        bits = int(dtype[3:])
        values = random.integers(0, 256, (size, size * bits // 8), np.uint8)
        scales = np.full((size, size // GROUP), 0.01, np.float32)
        return CpuLinear.packed(CpuTensor(values), CpuTensor(scales), None, None, bits, GROUP)
    weight = random.standard_normal((size, size), np.float32)
    return CpuLinear.dense(cpu_tensor(weight if dtype == "float32" else narrow(weight)))


def narrow(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """In bfloat16."""
    return numbers.astype(ml_dtypes.bfloat16)


def torch_mm(dtype: str, rows: int, size: int, threads: int) -> float | None:
    """Milliseconds of torch's product; None where there is none."""
    if dtype not in ("float32", "bfloat16") or find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(threads)
    weight = torch.randn(size, size, dtype=getattr(torch, dtype)).t()
    x = torch.randn(rows, size, dtype=weight.dtype)
    out = torch.empty(rows, size, dtype=weight.dtype)
    return least_ms(lambda: torch.mm(x, weight, out=out))


def figures(threads: int, size: int, peers: bool) -> dict[str, Any]:
    """All figures of the bench."""
    kernels = CpuKernels(threads)
    floats, halves, by_bytes, bandwidth = machine_peaks(threads)
    rates = {
        "float32": floats,
        "bfloat16": halves or floats,
        "int8": by_bytes or floats,
        "int4": by_bytes or floats,
    }
    runs = []
    for dtype, rate in rates.items():
        weights = layer(dtype, size)
        for rows in ROWS:
            x = np.random.default_rng(1).standard_normal((rows, size), np.float32)
            given = cpu_tensor(x if dtype == "float32" else narrow(x))
            out = cpu_tensor(np.zeros_like(x if dtype == "float32" else narrow(x)))

            reading = size * size * BITS[dtype] / 8 / bandwidth * 1e3
            multiplying = rows * size * size / rate * 1e3 if rate else 0.0
            program = CpuProgram(kernels)
            program.linear(weights, given, out)
            ms = least_ms(partial(program.run, rows))
            runs.append(
                {
                    "dtype": dtype,
                    "rows": rows,
                    "ms": ms,
                    "floor_ms": max(reading, multiplying),
                    "floor_ratio": ms / max(reading, multiplying),
                    "torch_ms": torch_mm(dtype, rows, size, threads) if peers else None,
                }
            )
    machine = {
        "instructions": instruction_set(),
        "read_bytes_per_s": bandwidth,
        "multiply_adds_per_s": rates,
    }
    return {"threads": threads, "size": size, "machine": machine, "runs": runs}


def main() -> None:
    """Print or write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--size", type=int, default=SIZE, help="inputs and outputs of the layer")
    parser.add_argument("--no-peers", action="store_true", help="do not measure torch")
    json_option(parser)
    options = parser.parse_args()
    found = figures(options.threads, options.size, not options.no_peers)
    if write_json(found, options.json):
        print(f"{'type':10}{'rows':>5}{'ms':>10}{'floor':>10}{'ratio':>8}{'torch':>10}")
        for run in found["runs"]:
            peer = "-" if run["torch_ms"] is None else f"{run['torch_ms']:.3f}"
            print(
                f"{run['dtype']:10}{run['rows']:5}{run['ms']:10.3f}{run['floor_ms']:10.3f}"
                f"{run['floor_ratio']:8.2f}{peer:>10}"
            )


if __name__ == "__main__":
    main()
