"""RMS normalization (Zhang and Sennrich, 2019), fused with the residual addition before it.

Rounds where ``kernels/cpu/src/norm.rs`` does: the sum, the normalized number and its product with
the weight, each to the type of the tensors; all between is float32.

Bytes moved: residual, branch and out once read or written each, the residual a second time to be
written: 4 * rows * width numbers (2 * rows * width without a branch), and the weight, which stays
in the cache. That is the limit for many rows. One program has a row, in registers between its two
uses; few rows are few programs, whose time is that of one row's loads, sums and stores.
"""

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton

MAX_WIDTH = 65_536
"""The widest row: what a program holds."""


@triton.jit
def add_rms_norm_kernel(
    residual_ptr, residual_stride, branch_ptr, branch_stride, weight_ptr, out_ptr, out_stride,
    width, count, epsilon, HAS_BRANCH: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """One program a row of ``width`` numbers, as float32 ``count``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    residual_ptr += row * residual_stride
    kind = residual_ptr.dtype.element_ty
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    wait_for_inputs(CHAINED)
    value = tl.load(residual_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_BRANCH:
        branch = tl.load(branch_ptr + row * branch_stride + column, mask=inside, other=0.0)
        total = (value + branch.to(tl.float32)).to(kind)
        tl.store(residual_ptr + column, total, mask=inside)
        value = total.to(tl.float32)
    mean = tl.div_rn(tl.sum(value * value, axis=0), count)
    factor = tl.div_rn(1.0, tl.sqrt_rn(mean + epsilon))
    normal = (value * factor).to(kind).to(tl.float32)
    tl.store(out_ptr + row * out_stride + column, (normal * weight).to(kind), mask=inside)


def add_rms_norm(
    residual: torch.Tensor,
    branch: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
    out: torch.Tensor,
) -> None:
    """Add ``branch`` to ``residual`` in place, and write the normalized sum times ``weight``.

    Queues one kernel on the current stream; can be captured.

    Args:
        residual: [rows, width], float32, bfloat16 or float16, each row in one piece.
        branch: The same shape and type, or None: nothing is added and ``residual`` stays.
        weight: [width].
        epsilon: Added to the mean of the squares.
        out: [rows, width], written; may be ``branch``.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check(residual, branch, weight, out)
    rows, width = residual.shape
    if rows == 0:
        return
    block = triton.next_power_of_2(width)
    addend = residual if branch is None else branch
    add_rms_norm_kernel[(rows,)](
        residual, residual.stride(0), addend, addend.stride(0), weight, out, out.stride(0),
        width, float(width), epsilon, HAS_BRANCH=branch is not None, BLOCK=block,
        num_warps=min(max(block // 512, 1), 32), enable_fp_fusion=True, **chained(residual.device),
    )  # fmt: skip


def add_rms_norm_reference(
    residual: torch.Tensor,
    branch: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
    out: torch.Tensor,
) -> None:
    """As :func:`add_rms_norm`, in torch."""
    _check(residual, branch, weight, out)
    if branch is not None:
        residual.copy_(residual.float() + branch.float())
    value = residual.float()
    factor = 1.0 / (value.square().mean(dim=1, keepdim=True) + epsilon).sqrt()
    out.copy_((value * factor).to(residual.dtype).float() * weight.float())


def _check(
    residual: torch.Tensor, branch: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor
) -> None:
    for tensor in (residual, out) if branch is None else (residual, branch, out):
        if tensor.shape != residual.shape or tensor.dtype != residual.dtype:
            raise ValueError("residual, branch and out must have one shape and one type")
        if tensor.ndim != 2 or tensor.stride(1) != 1:
            raise ValueError("residual, branch and out must be [rows, width], rows in one piece")
    if weight.shape != residual.shape[1:] or not weight.is_contiguous():
        raise ValueError(f"the weight must be [{residual.shape[1]}], in one piece")
    if not 0 < len(weight) <= MAX_WIDTH:
        raise ValueError(f"rows of {len(weight)} numbers: there is a kernel for 1 to {MAX_WIDTH}")
