"""The Triton kernels and their references as backends of ``tests/model/draws.py``."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine._core import step_numbers
from pyengine.kernels.sampling import reference as sampling_reference
from pyengine.kernels.sampling import sample as sampling
from pyengine.kernels.sampling import verify
from pyengine.kernels.sampling.inputs import SamplingInputs
from tests.model.draws import Backend, Ints, Step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def as_tensor(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array).to(DEVICE)


def backend(reference: bool, dtype: torch.dtype = torch.float32) -> Backend:
    """Samples and verifies in torch, or in Triton: interpreted where there is no GPU."""
    sample: Any = sampling_reference.sample if reference else sampling.sample
    compare = verify.verify_reference if reference else verify.verify

    def run(step: Step, logits: NDArray[Any]) -> tuple[Ints, Ints]:
        inputs = SamplingInputs.from_numpy(step.arrays(), DEVICE)
        tokens = torch.full((len(logits),), -7, dtype=torch.int32, device=DEVICE)
        counts = torch.full((step.rows,), -7, dtype=torch.int32, device=DEVICE)
        sample(inputs, as_tensor(logits).to(dtype), tokens)
        compacted, last_token = torch.full_like(tokens, -7), torch.full_like(counts, -7)
        # Rows have sequences in the reverse order.
        sequence = torch.arange(step.rows, dtype=torch.int32, device=DEVICE).flip(0)
        ids = as_tensor(step.token_ids)
        header = torch.zeros(len(step_numbers()), dtype=torch.int64, device=DEVICE)
        header[step_numbers()["num_sampled"]] = step.rows
        compare(inputs, header, ids, tokens, sequence, counts, compacted, last_token)
        check_kept(step, *(t.cpu().numpy() for t in (tokens, counts, compacted, last_token)))
        return tokens.cpu().numpy(), counts.cpu().numpy()

    return run


def check_kept(step: Step, tokens: Ints, counts: Ints, compacted: Ints, last_token: Ints) -> None:
    """The tokens that hold are written row after row, and the last of each where it belongs."""
    starts = step.arrays()["logit_start"][:-1]
    rows = [tokens[start : start + count] for start, count in zip(starts, counts, strict=True)]
    kept = np.concatenate(rows)
    assert compacted.tolist() == [*kept.tolist(), *[-7] * (len(tokens) - len(kept))]
    assert last_token[::-1].tolist() == [max(row[-1], 0) for row in rows]
