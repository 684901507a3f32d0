"""Rows of activations that become floats of 8 bits before they are multiplied."""

import torch

from pyengine.kernels.layers.quantize import FLOAT8
from pyengine.model.torch.device.ops import TorchOps
from pyengine.model.weights.float8 import Float8Activations


def rounded_by_row(
    ops: TorchOps, x: torch.Tensor, activations: Float8Activations
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` [rows, width] as float8_e4m3fn, and a scale for each row: float32 [rows, 1]."""
    small = torch.empty_like(x, dtype=FLOAT8)
    scales = x.new_empty(len(x), 1, dtype=torch.float32)
    ops.quantize_rows(x, small, scales, activations.bound)
    return small, scales


def rounded_by_step(
    ops: TorchOps, x: torch.Tensor, step: int, activations: Float8Activations
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` [rows, width] as float8_e4m3fn, and a scale for each step of a row's numbers: float32
    [steps, rows], those of a step in one piece.
    """
    rows, width = x.shape
    small = torch.empty_like(x, dtype=FLOAT8)
    # Kernels are compiled for distances that are multiples of 16.
    room = x.new_empty(-(-width // step), -(-rows // 16) * 16, dtype=torch.float32)
    scales = room[:, :rows]
    ops.quantize_groups(x, small, scales, step, activations.bound)
    return small, scales
