"""Operations of torch models beside attention: Triton on a GPU, references elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pyengine.kernels.layers import (
    activation,
    block_product,
    grouped,
    grouped_block,
    grouped_packed,
    head_norm,
    norm,
    packed_product,
    packed_rows,
    quantize,
    rope,
    router,
)
from pyengine.kernels.layers.packed_tensor import PackedTensor


@dataclass(frozen=True)
class TorchOps:
    """The calls for one kind of device. All write into the caller's tensors.

    Attributes:
        add_rms_norm: (residual, branch or None, weight, epsilon, out), see
            :mod:`pyengine.kernels.layers.norm`.
        head_rms_norm: (qkv, query_weight, key_weight, num_heads, epsilon), see
            :mod:`pyengine.kernels.layers.head_norm`.
        rope_append: (qkv, angles, positions, slot_mapping, keys, values, num_heads, key_scale,
            value_scale), see
            :mod:`pyengine.kernels.layers.rope`.
        gated: (gate_up, out, activation, limit), see :mod:`pyengine.kernels.layers.activation`.
        quantize_rows: (x, out, scales, bound), see :mod:`pyengine.kernels.layers.quantize`.
        quantize_groups: (x, out, scales, group, bound), see there.
        block_product: (x, x_scales, weight, scales, bias or None, step, out), see
            :mod:`pyengine.kernels.layers.block_product`.
        packed_product: (x, weight, bias or None, out), see
            :mod:`pyengine.kernels.layers.packed_product`.
        packed_rows: (table, index, out), see :mod:`pyengine.kernels.layers.packed_rows`.
        route: (logits, experts, weights, routed, live, ...), see
            :mod:`pyengine.kernels.layers.router`.
        grouped: (x, weight, bias or None, ends, out), see :mod:`pyengine.kernels.layers.grouped`.
        grouped_packed: (x, weight, bias or None, ends, out), see
            :mod:`pyengine.kernels.layers.grouped_packed`.
        grouped_block: (x, x_scales, weight, bias or None, ends, out), see
            :mod:`pyengine.kernels.layers.grouped_block`.
    """

    add_rms_norm: Callable[
        [torch.Tensor, torch.Tensor | None, torch.Tensor, float, torch.Tensor], None
    ]
    head_rms_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int, float], None]
    rope_append: Callable[
        [
            torch.Tensor,
            torch.Tensor,
            torch.Tensor,
            torch.Tensor,
            torch.Tensor,
            torch.Tensor,
            int,
            float,
            float,
        ],
        None,
    ]
    gated: Callable[[torch.Tensor, torch.Tensor, str, float | None], None]
    quantize_rows: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], None]
    quantize_groups: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int, float], None]
    block_product: Callable[
        [
            torch.Tensor,
            torch.Tensor,
            torch.Tensor,
            torch.Tensor,
            torch.Tensor | None,
            int,
            torch.Tensor,
        ],
        None,
    ]
    packed_product: Callable[[torch.Tensor, PackedTensor, torch.Tensor | None, torch.Tensor], None]
    packed_rows: Callable[[PackedTensor, torch.Tensor, torch.Tensor], None]
    route: Callable[..., None]
    grouped: Callable[
        [torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor], None
    ]
    grouped_packed: Callable[
        [torch.Tensor, PackedTensor, torch.Tensor | None, torch.Tensor, torch.Tensor], None
    ]
    grouped_block: Callable[
        [
            torch.Tensor,
            torch.Tensor,
            PackedTensor,
            torch.Tensor | None,
            torch.Tensor,
            torch.Tensor,
        ],
        None,
    ]


KERNELS = TorchOps(
    add_rms_norm=norm.add_rms_norm,
    head_rms_norm=head_norm.head_rms_norm,
    rope_append=rope.rope_append,
    gated=activation.gated,
    quantize_rows=quantize.quantize_rows,
    quantize_groups=quantize.quantize_groups,
    block_product=block_product.block_product,
    packed_product=packed_product.packed_product,
    packed_rows=packed_rows.packed_rows,
    route=router.route,
    grouped=grouped.grouped,
    grouped_packed=grouped_packed.grouped_packed,
    grouped_block=grouped_block.grouped_block,
)
REFERENCES = TorchOps(
    add_rms_norm=norm.add_rms_norm_reference,
    head_rms_norm=head_norm.head_rms_norm_reference,
    rope_append=rope.rope_append_reference,
    gated=activation.gated_reference,
    quantize_rows=quantize.quantize_rows_reference,
    quantize_groups=quantize.quantize_groups_reference,
    block_product=block_product.block_product_reference,
    packed_product=packed_product.packed_product_reference,
    packed_rows=packed_rows.packed_rows_reference,
    route=router.route_reference,
    grouped=grouped.grouped_reference,
    grouped_packed=grouped_packed.grouped_packed_reference,
    grouped_block=grouped_block.grouped_block_reference,
)


def torch_ops(device: torch.device) -> TorchOps:
    """The calls for ``device``."""
    return KERNELS if device.type == "cuda" else REFERENCES
