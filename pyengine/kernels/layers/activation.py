"""The gated activations of feed-forward layers: f(gate) * up (Shazeer, "GLU Variants Improve
Transformer", 2020), with f as ``silu``, ``gelu`` (Hendrycks and Gimpel, 2016), ``gelu_tanh``, which
is nearly the same, ``relu`` or ``relu2``.
``clamped_swiglu`` of gpt-oss is min(gate, limit) * sigmoid(1.702 * min(gate, limit)) * (up + 1),
with ``up`` within the limit on both sides.

Rounds where ``kernels/cpu/src/activation.rs`` does: the activation, and its product with ``up``,
each to the type of the tensors; all between is float32.

Bytes moved: 3 * rows * width numbers, two read and one written; that is the limit. A program has
``BLOCK`` numbers of a row: 8 for each of its threads, one load of 16 bytes in bfloat16.
"""

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton

BLOCK = 1024
"""Numbers of a row that a program works on."""


KINDS = {"silu": 0, "gelu_tanh": 1, "relu2": 2, "clamped_swiglu": 3, "gelu": 4, "relu": 5}
SLOPE = 1.702
"""Factor of the gate in the sigmoid of ``clamped_swiglu``."""


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x), by e^-|x|, which cannot overflow."""
    small = tl.exp(-tl.abs(x))
    return tl.div_rn(tl.where(x >= 0.0, 1.0, small), 1.0 + small)


@triton.jit
def gated_kernel(
    gate_up_ptr, gate_up_stride, out_ptr, out_stride, width, limit,
    KIND: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of rows and blocks of a row; ``KIND`` is one of :data:`KINDS`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate_ptr = gate_up_ptr + row * gate_up_stride + column
    wait_for_inputs(CHAINED)
    gate = tl.load(gate_ptr, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + width, mask=inside, other=0.0).to(tl.float32)
    kind = out_ptr.dtype.element_ty
    if KIND == 0:
        active = gate * sigmoid(gate)
    elif KIND == 1:
        # (1 + tanh z) / 2 = sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3)
        active = gate * sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    elif KIND == 2:
        active = tl.where(gate < 0.0, 0.0, gate * gate)
    elif KIND == 4:
        active = gate * (0.5 + 0.5 * tl.erf(gate * 0.7071067811865476))
    elif KIND == 5:
        active = tl.where(gate < 0.0, 0.0, gate)
    else:
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        up = (up + 1.0).to(kind).to(tl.float32)
        active = gate * sigmoid(gate * 1.702)
    active = active.to(kind).to(tl.float32)
    tl.store(out_ptr + row * out_stride + column, (active * up).to(kind), mask=inside)


def gated(
    gate_up: torch.Tensor, out: torch.Tensor, activation: str = "silu", limit: float | None = None
) -> None:
    """activation(gate) * up.

    Queues one kernel on the current stream; can be captured.

    Args:
        gate_up: [rows, 2 * width], gates first; float32, bfloat16 or float16, rows in one piece.
        out: [rows, width] of the same type, written.
        activation: One of :data:`KINDS`.
        limit: That of ``clamped_swiglu``.

    Raises:
        ValueError: Shapes, types or strides are others, or there is no such activation.
    """
    _check(gate_up, out, activation, limit)
    rows, width = out.shape
    if rows and width:
        block = min(BLOCK, triton.next_power_of_2(width))
        gated_kernel[(rows, triton.cdiv(width, block))](
            gate_up,
            gate_up.stride(0),
            out,
            out.stride(0),
            width,
            limit or 0.0,
            KIND=KINDS[activation],
            BLOCK=block,
            enable_fp_fusion=True,
            **chained(out.device),
        )


def gated_reference(
    gate_up: torch.Tensor, out: torch.Tensor, activation: str = "silu", limit: float | None = None
) -> None:
    """As :func:`gated`, in torch."""
    _check(gate_up, out, activation, limit)
    gate, up = gate_up.float().chunk(2, dim=1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), (up.clamp(-limit, limit) + 1).to(out.dtype).float()
        active = gate * torch.sigmoid(gate * SLOPE)
    else:
        active = activated(gate, activation)
    out.copy_(active.to(out.dtype).float() * up)


def activated(
    x: torch.Tensor, activation: str, weights: tuple[float, float, float] | None = None
) -> torch.Tensor:
    """The activation of every number, in torch; not the clamped one, which has two arguments."""
    if weights is not None:  # xielu
        positive, negative, slope = weights
        bent = torch.where(x > 0, positive * x * x, negative * (torch.expm1(x) - x))
        return bent + slope * x
    if activation == "silu":
        return torch.nn.functional.silu(x)
    if activation == "gelu":
        return torch.nn.functional.gelu(x)
    if activation == "relu":
        return torch.nn.functional.relu(x)
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(x, approximate="tanh")
    if activation == "relu2":
        return torch.nn.functional.relu(x).square()
    raise ValueError(f"there is no activation {activation!r} of one number")


def _check(gate_up: torch.Tensor, out: torch.Tensor, activation: str, limit: float | None) -> None:
    if activation not in KINDS or (activation == "clamped_swiglu") != (limit is not None):
        raise ValueError(f"there is no activation {activation!r} with a limit of {limit}")
    if gate_up.ndim != 2 or gate_up.shape != (len(out), 2 * out.shape[-1]):
        raise ValueError(f"gates and ups are {[*gate_up.shape]}, the output {[*out.shape]}")
    if gate_up.dtype != out.dtype or gate_up.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("gate_up and out must have one type, and each row must be in one piece")
