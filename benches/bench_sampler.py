"""What does it cost to choose a token from a row of logits on the CPU?

One row at a time on one thread, float32, logits normal with a spread of 3 (some hundred tokens are
likely) and of 0.1 (all are), a vocabulary of 2,048 and one of 151,936. Beside it: torch's softmax
and ``multinomial`` on the same row with no other rule, and the floor: the row copied once.
``--json -`` prints the figures as JSON.
"""

import argparse
import json
from typing import Any

import numpy as np
import torch

from benches.medians import median_us
from pyengine._core import CpuKernels, CpuRules, CpuTensor
from pyengine.model.step_fields import sampling_rows

VOCABULARIES = (2_048, 151_936)
SPREADS = (3.0, 0.1)
RULES: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {},
    "top_p 0.95": {"top_p": 0.95},
    "top_k 20, top_p 0.95": {"top_k": 20, "top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
}
SECONDS_PER_FIGURE = 0.2


def sampler_us(kernels: CpuKernels, logits: torch.Tensor, rules: dict[str, float]) -> float:
    """Microseconds of one row."""
    sampling = sampling_rows(1, **rules)
    step = CpuRules(
        sampling=sampling.view(np.uint32),
        sample_position=np.ones(1, np.int64),
        logit_start=np.array([0, 1], np.int32),
        logit_row=np.zeros(1, np.int32),
        logit_token=np.zeros(1, np.int32),
        mask_row=np.full(1, -1, np.int32),
        mask=np.zeros(0, np.uint32),
    )
    row, out = CpuTensor(logits.numpy()), CpuTensor(np.zeros(1, np.int32))

    def draw() -> None:
        sampling["seed"] += 1
        kernels.sample(step, row, out, 0, 1)

    return median_us(draw, SECONDS_PER_FIGURE)


def case(kernels: CpuKernels, vocabulary: int, spread: float) -> dict[str, Any]:
    """The figures of one row."""
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(0)) * spread
    copy = torch.empty_like(logits)
    return {
        "vocabulary": vocabulary,
        "spread": spread,
        "floor_us": median_us(lambda: copy.copy_(logits), SECONDS_PER_FIGURE),
        "torch_us": median_us(lambda: logits.softmax(dim=1).multinomial(1), SECONDS_PER_FIGURE),
        "us": {name: sampler_us(kernels, logits, rules) for name, rules in RULES.items()},
    }


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="-", choices=["-"], help="print JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kernels = CpuKernels(1)
    cases = [case(kernels, v, spread) for v in VOCABULARIES for spread in SPREADS]
    if arguments.json:
        print(json.dumps({"cases": cases}))
        return
    print("microseconds a row".ljust(22), *(name.rjust(22) for name in ("copy", "torch", *RULES)))
    for row in cases:
        figures = [row["floor_us"], row["torch_us"], *row["us"].values()]
        name = f"{row['vocabulary']:,}, spread {row['spread']:g}"
        print(name.ljust(22), *(f"{figure:22.1f}" for figure in figures))


if __name__ == "__main__":
    main()
