"""What torch models call beside matrix products: Triton's kernels on a GPU, torch elsewhere.

All write into the caller's tensors and round where the Rust kernels do.
"""

from typing import Protocol

import torch

from pyengine.model.matmul import Matmul


class TorchOps(Protocol):
    """The calls, on one kind of device."""

    def add_rms_norm(
        self,
        residual: torch.Tensor,
        branch: torch.Tensor | None,
        weight: torch.Tensor,
        epsilon: float,
        out: torch.Tensor,
    ) -> None:
        """Add ``branch`` to ``residual`` [rows, width], write the sum's norm times ``weight``."""

    def rope_append(
        self,
        qkv: torch.Tensor,
        angles: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        num_heads: int,
    ) -> None:
        """Rotate queries and keys, and store keys and values.

        Args:
            qkv: [tokens, (heads + 2 * kv heads) * head_dim]; queries are rotated in place.
            angles: float32 [context, head_dim], cosines, then sines.
            positions: int32 [tokens].
            slot_mapping: int32 [tokens], block * block_size + offset; -1 stores nothing.
            keys: [blocks, block_size, kv heads, head_dim], of any floating type.
            values: The same.
            num_heads: Query heads.
        """

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        """silu(gate) * up: [rows, 2 * width] -> ``out`` [rows, width], gates first."""


class Reference:
    """The calls in plain torch, which allocates on its way; for the CPU, and to compare with."""

    @staticmethod
    def add_rms_norm(
        residual: torch.Tensor,
        branch: torch.Tensor | None,
        weight: torch.Tensor,
        epsilon: float,
        out: torch.Tensor,
    ) -> None:
        """See :class:`TorchOps`."""
        if branch is not None:
            residual += branch
        value = residual.float()
        factor = torch.rsqrt(value.square().mean(-1, keepdim=True) + epsilon)
        torch.mul((value * factor).to(out.dtype), weight, out=out)

    @staticmethod
    def rope_append(
        qkv: torch.Tensor,
        angles: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        num_heads: int,
    ) -> None:
        """See :class:`TorchOps`."""
        kv_heads, dim = keys.shape[2:]
        heads = qkv.view(len(qkv), -1, dim)  # [tokens, heads + 2 * kv heads, head_dim]
        cosines, sines = angles[positions][:, None].chunk(2, -1)
        turning = heads[:, : num_heads + kv_heads].float()
        low, high = turning.chunk(2, -1)
        turned = torch.cat((low * cosines - high * sines, high * cosines + low * sines), -1)
        heads[:, :num_heads] = turned[:, :num_heads].to(qkv.dtype)
        stored = slot_mapping >= 0
        slots = slot_mapping[stored].long()
        new_keys = turned[:, num_heads:].to(qkv.dtype)[stored]
        keys.view(-1, kv_heads, dim)[slots] = new_keys.to(keys.dtype)
        new_values = heads[:, num_heads + kv_heads :][stored]
        values.view(-1, kv_heads, dim)[slots] = new_values.to(values.dtype)

    @staticmethod
    def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
        """See :class:`TorchOps`."""
        gate, up = gate_up.chunk(2, -1)
        silu = torch.nn.functional.silu(gate.float()).to(out.dtype)
        torch.mul(silu, up, out=out)


def torch_ops(device: torch.device) -> TorchOps:
    """The calls for ``device``."""
    return Reference()


def torch_matmul(device: torch.device) -> Matmul:
    """What multiplies by weights on ``device``."""
    return Matmul()
