"""What models are made of on the CPU: the Rust kernels, and torch's matrix products.

A step allocates nothing that grows with it: every layer writes into a :class:`Workspace` made for
the largest step, of which a step takes the first rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pyengine._core import CpuKernels, CpuLinear, CpuProgram, CpuTensor
from pyengine.errors import ModelLoadError


def cpu_tensor(tensor: torch.Tensor) -> CpuTensor:
    """``tensor`` (contiguous, on the CPU) as the kernels see it; shares its memory."""
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return CpuTensor(tensor.numpy())


class Workspace:
    """A buffer [max rows, width] that torch and the kernels share.

    Attributes:
        tensor: All of it, for torch.
        kernel: The same memory, for the kernels.
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        self.tensor = torch.zeros(rows, width, dtype=dtype)
        self.kernel = cpu_tensor(self.tensor)


@dataclass(frozen=True)
class Kernels:
    """What the device gives a model beside its weights.

    Attributes:
        kernels: The Rust kernels and their threads.
        max_tokens: Most tokens in a step.
        max_sampled: Most rows whose logits are wanted in a step.
        num_blocks: KV blocks.
    """

    kernels: CpuKernels
    max_tokens: int
    max_sampled: int
    num_blocks: int


Ops = CpuKernels | CpuProgram
"""What a layer calls: the kernels, which work at once, or a program, which records them."""


class Linear:
    """x W^T + b, from one workspace into another.

    In float32 by a Rust kernel, where the processor has the instructions: for the few rows of a
    step it takes a fraction of a library's time, which is made for many, and a row's results do
    not depend on what other rows there are. Otherwise by torch.

    Attributes:
        recordable: Whether it is done by a kernel, which a program can record.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """``weight`` is [out, in], ``bias`` [out]."""
        self.recordable = weight.dtype == torch.float32 and CpuLinear.supported()
        if self.recordable:
            packed = cpu_tensor(weight.contiguous())
            self._packed = CpuLinear(packed, None if bias is None else cpu_tensor(bias))
        else:
            self._transposed = weight.t()
            self._bias = bias

    def __call__(self, on: Ops, x: Workspace, out: Workspace, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        if self.recordable:
            on.linear(self._packed, x.kernel, out.kernel, rows)
        elif self._bias is None:
            torch.mm(x.tensor[:rows], self._transposed, out=out.tensor[:rows])
        else:
            torch.addmm(self._bias, x.tensor[:rows], self._transposed, out=out.tensor[:rows])


class RmsNorm:
    """Root mean square normalization, with the residual addition before it."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        """``weight`` is [width]."""
        self._weight = cpu_tensor(weight)
        self._epsilon = epsilon

    def __call__(
        self, on: Ops, residual: Workspace, branch: Workspace | None, out: Workspace, rows: int
    ) -> None:
        """Add ``branch`` to ``residual`` in place, and normalize the sum into ``out``."""
        on.add_rms_norm(
            residual.kernel,
            None if branch is None else branch.kernel,
            self._weight,
            self._epsilon,
            out.kernel,
            rows,
        )


def rotary_table(config: Mapping[str, Any], head_dim: int, context: int) -> torch.Tensor:
    """Cosines, then sines, of the rotary angles: float32 [context, head_dim].

    Plain, ``linear`` (positions divided) and ``llama3`` (low frequencies divided, high ones kept,
    a ramp between) scaling, with their parameters as config.json spells them.

    Raises:
        ModelLoadError: Another kind of scaling.
    """
    # transformers 5 writes rope_parameters; before, rope_theta and rope_scaling stood apart.
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if float(scaling.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelLoadError("partial rotary embedding is not supported")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / theta**exponents
    try:
        if kind == "linear":
            frequencies = frequencies / float(scaling["factor"])
        elif kind == "llama3":
            frequencies = _llama3(frequencies, scaling)
        elif kind != "default":
            raise ModelLoadError(
                f"rotary scaling {kind!r} is not supported; there are: default, linear, llama3"
            )
    except KeyError as error:
        raise ModelLoadError(f"rotary scaling {kind!r} in config.json lacks {error}") from error
    angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=1).contiguous()


def _llama3(frequencies: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
    # 0 where a wave is longer than the lower bound, 1 where it is shorter than the upper.
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * ((1.0 - kept) / factor + kept)
