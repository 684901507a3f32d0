"""Mixtures of experts in torch: rows are sent to experts, and ranks add up what these made of them.

A step must never ask the device what it computed, so that a graph can capture it. Ranks share every
expert, or each has some of them as a whole.
"""

from typing import Protocol

import torch

from pyengine.distributed.group import Group
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.experts import ExpertWeights, Routing
from pyengine.model.torch.device.ops import TorchOps
from pyengine.model.torch.device.transfer import Transfer


class ExpertProducts(Protocol):
    """The feed-forward layers of this rank's experts, or of its share of all."""

    def __call__(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Each row through its experts here, without a wait for the device.

        Args:
            x: [rows, hidden], rows in one piece.
            experts: Numbers among those of all ranks, int32 [rows, chosen].
            weights: The weights of each one's result, float32 [rows, chosen].
            out: [rows, hidden] of the type of ``x``, written: the weighted sum of the results.
        """


class TorchExperts:
    """The experts of a layer: this rank's share of each, or its own.

    Attributes:
        routed: int64 [all experts], tokens that were sent to each so far.
    """

    def __init__(
        self,
        group: Group,
        ops: TorchOps,
        routing: Routing,
        weights: ExpertWeights,
        products: ExpertProducts,
        transfer: Transfer,
        live: torch.Tensor,
    ) -> None:
        """Copy what rows are sent by.

        Args:
            group: The ranks that share the model.
            ops: The operations of the device.
            routing: How tokens are sent to experts.
            weights: The weights of this rank.
            products: Made of these weights.
            transfer: Brings weights to the device.
            live: int64 [1] there, the tokens of a step, without those that fill up a graph's.
        """
        self._group = group
        self._ops = ops
        self._routing = routing
        self._products = products
        float32 = torch.float32
        bias, scales = weights.choice_bias, weights.scales
        self._bias = None if bias is None else transfer.vector(bias, float32)
        self._scales = None if scales is None else transfer.vector(scales, float32)
        self._live = live
        self.routed = torch.zeros(weights.count, dtype=torch.int64, device=live.device)

    def __call__(self, logits: Buffer, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, experts], [rows, hidden] -> ``out`` [rows, hidden], the sum over all ranks."""
        given, to = x.tensor[:rows], out.tensor[:rows]
        experts, weights = self._route(logits.tensor[:rows])
        self._products(given, experts, weights, to)
        self._group.all_reduce(to)

    def _route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Experts of each row, of any rank, and their weights, [rows, chosen] both."""
        routing = self._routing
        experts = torch.empty(len(logits), routing.chosen, dtype=torch.int32, device=logits.device)
        weights = experts.new_empty(experts.shape, dtype=torch.float32)
        self._ops.route(
            logits,
            experts,
            weights,
            self.routed,
            self._live,
            sigmoid=routing.sigmoid,
            normalized=routing.normalized,
            scale=routing.scale,
            groups=routing.groups,
            chosen_groups=routing.chosen_groups,
            group_best=routing.group_best,
            bias=self._bias,
            scales=self._scales,
        )
        return experts, weights
