"""The gated activation of Llama's feed-forward layer: silu(gate) * up (Shazeer, 2020).

Rounds where ``kernels/cpu/src/activation.rs`` does: silu, and its product with ``up``, each to the
type of the tensors; all between is float32.

Bytes moved: 3 * rows * width numbers, two read and one written; that is the limit. A program has
``BLOCK`` numbers of a row: 8 for each of its threads, one load of 16 bytes in bfloat16.
"""

import torch

from pyengine.kernels.language import tl, triton

BLOCK = 1024
"""Numbers of a row that a program works on."""


@triton.jit
def silu_mul_kernel(gate_up_ptr, gate_up_stride, out_ptr, out_stride, width, BLOCK: tl.constexpr):
    """A grid of rows and blocks of a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate_ptr = gate_up_ptr + row * gate_up_stride + column
    gate = tl.load(gate_ptr, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + width, mask=inside, other=0.0).to(tl.float32)
    kind = out_ptr.dtype.element_ty
    small = tl.exp(-tl.abs(gate))  # of a negative number, which cannot overflow
    sigmoid = tl.div_rn(tl.where(gate >= 0.0, 1.0, small), 1.0 + small)
    silu = (gate * sigmoid).to(kind).to(tl.float32)
    tl.store(out_ptr + row * out_stride + column, (silu * up).to(kind), mask=inside)


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """silu(gate) * up.

    Queues one kernel on the current stream; can be captured.

    Args:
        gate_up: [rows, 2 * width], gates first; float32, bfloat16 or float16, rows in one piece.
        out: [rows, width] of the same type, written.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check(gate_up, out)
    rows, width = out.shape
    if rows and width:
        block = min(BLOCK, triton.next_power_of_2(width))
        silu_mul_kernel[(rows, triton.cdiv(width, block))](
            gate_up,
            gate_up.stride(0),
            out,
            out.stride(0),
            width,
            BLOCK=block,
            enable_fp_fusion=True,
        )


def silu_mul_reference(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """As :func:`silu_mul`, in torch."""
    _check(gate_up, out)
    gate, up = gate_up.float().chunk(2, dim=1)
    out.copy_(torch.nn.functional.silu(gate).to(out.dtype).float() * up)


def _check(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    if gate_up.ndim != 2 or gate_up.shape != (len(out), 2 * out.shape[-1]):
        raise ValueError(f"gates and ups are {[*gate_up.shape]}, the output {[*out.shape]}")
    if gate_up.dtype != out.dtype or gate_up.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("gate_up and out must have one type, and each row must be in one piece")
