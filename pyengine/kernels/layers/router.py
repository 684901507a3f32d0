"""The experts of each token, from the logits of a router, and their weights.

As ``kernels/cpu/src/experts/router.rs``, which is where the kinds of routers come from. Scores are
the softmax over all experts, or sigmoids; a bias counts where experts are chosen and not where they
are weighted; of groups of neighbouring experts only those with the best one or two are looked at.

Bytes moved: rows * experts logits read, 8 bytes for each choice written. A program has a row in
registers; its time is that of one maximum after the other.
"""

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton

# Below all scores, so that even rows of NaN choose experts that there are, each once.
_NO_NUMBER = tl.constexpr(-1e38)
_CLOSED = tl.constexpr(-2e38)


@triton.jit
def route_kernel(
    logits_ptr, logits_stride, bias_ptr, scales_ptr, experts_ptr, weights_ptr, routed_ptr, live_ptr,
    count, factor,
    CHOSEN: tl.constexpr, SIGMOID: tl.constexpr, NORMALIZED: tl.constexpr, GROUPS: tl.constexpr,
    CHOSEN_GROUPS: tl.constexpr, GROUP_BEST: tl.constexpr, GROUPS_BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SCALES: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """One program a row of ``count`` logits; weights are multiplied by ``factor``."""
    row = tl.program_id(0)
    expert = tl.arange(0, BLOCK)
    inside = expert < count
    logits_ptr += row.to(tl.int64) * logits_stride
    wait_for_inputs(CHAINED)
    logit = tl.load(logits_ptr + expert, mask=inside, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        score = tl.div_rn(1.0, 1.0 + tl.exp(-logit))
    else:
        power = tl.exp(logit - tl.max(logit, axis=0))
        score = tl.div_rn(power, tl.sum(power, axis=0))
    rank = score
    if HAS_BIAS:
        rank += tl.load(bias_ptr + expert, mask=inside, other=0.0).to(tl.float32)
    rank = tl.where(rank == rank, rank, _NO_NUMBER)
    rank = tl.where(inside, rank, float("-inf"))
    if GROUPS > 1:
        group = expert // (count // GROUPS)
        number = tl.arange(0, GROUPS_BLOCK)
        worth = tl.full([GROUPS_BLOCK], float("-inf"), tl.float32)
        for at in tl.static_range(GROUPS):
            of_group = tl.where(group == at, rank, float("-inf"))
            of_best = tl.max(of_group, axis=0)
            for _ in tl.static_range(GROUP_BEST - 1):
                best = tl.argmax(of_group, axis=0)
                of_group = tl.where(expert == best, float("-inf"), of_group)
                of_best += tl.max(of_group, axis=0)
            worth = tl.where(number == at, of_best, worth)
        is_open = expert < 0
        for _ in tl.static_range(CHOSEN_GROUPS):
            best = tl.argmax(worth, axis=0)
            is_open = is_open | (group == best)
            worth = tl.where(number == best, float("-inf"), worth)
        rank = tl.where(is_open | (expert >= count), rank, _CLOSED)
    chosen = expert < 0
    for _ in tl.static_range(CHOSEN):
        best = tl.argmax(rank, axis=0)
        chosen = chosen | (expert == best)
        rank = tl.where(expert == best, float("-inf"), rank)
    weight = score
    if NORMALIZED:
        weight = tl.div_rn(weight, tl.sum(tl.where(chosen, score, 0.0), axis=0) + 1e-20)
    weight *= factor
    if HAS_SCALES:
        weight *= tl.load(scales_ptr + expert, mask=inside, other=0.0).to(tl.float32)
    place = row * CHOSEN + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(experts_ptr + place, expert, mask=chosen)
    tl.store(weights_ptr + place, weight, mask=chosen)
    one = tl.full([BLOCK], 1, tl.int64)
    counted = expert < tl.where(row < tl.load(live_ptr), count, 0)
    tl.atomic_add(routed_ptr + expert, one, mask=chosen & counted)


def route(
    logits: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    routed: torch.Tensor,
    live: torch.Tensor,
    *,
    sigmoid: bool = False,
    normalized: bool = False,
    scale: float = 1.0,
    groups: int = 1,
    chosen_groups: int = 1,
    group_best: int = 2,
    bias: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> None:
    """Choose experts; queues one kernel on the current stream, and can be captured.

    Args:
        logits: [rows, all experts], float32, bfloat16 or float16, each row in one piece.
        experts: int32 [rows, chosen], written: in their order.
        weights: float32 [rows, chosen], written.
        routed: int64 [all experts], to which the rows that chose each are added.
        live: int64 [1], rows that count there; those behind fill up a graph's.
        sigmoid: Scores are sigmoids, not a softmax.
        normalized: The weights of the chosen are divided by their sum.
        scale: Multiplies the weights.
        groups: Of neighbouring experts, judged by the sum of their best ranks.
        chosen_groups: Groups of which experts are chosen.
        group_best: How many of a group's ranks judge it.
        bias: [all experts], added to the scores where experts are chosen; float32 like the next.
        scales: [all experts], which multiply the weights.

    Raises:
        ValueError: Shapes or types are others.
    """
    _check(logits, experts, weights, routed, live)
    (rows, count), chosen = logits.shape, experts.shape[1]
    if not rows:
        return
    route_kernel[(rows,)](
        logits, logits.stride(0), bias, scales, experts, weights, routed, live, count, float(scale),
        CHOSEN=chosen, SIGMOID=sigmoid, NORMALIZED=normalized, GROUPS=groups,
        CHOSEN_GROUPS=chosen_groups, GROUP_BEST=group_best,
        GROUPS_BLOCK=triton.next_power_of_2(groups),
        HAS_BIAS=bias is not None, HAS_SCALES=scales is not None,
        BLOCK=triton.next_power_of_2(count), num_warps=1, enable_fp_fusion=False,
        **chained(logits.device),
    )  # fmt: skip


def route_reference(
    logits: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    routed: torch.Tensor,
    live: torch.Tensor,
    *,
    sigmoid: bool = False,
    normalized: bool = False,
    scale: float = 1.0,
    groups: int = 1,
    chosen_groups: int = 1,
    group_best: int = 2,
    bias: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
) -> None:
    """As :func:`route`, in torch."""
    _check(logits, experts, weights, routed, live)
    given = logits.float()
    scores = given.sigmoid() if sigmoid else given.softmax(1)
    ranks = scores if bias is None else scores + bias
    if groups > 1:
        by_group = ranks.unflatten(1, (groups, -1))
        worth = by_group.topk(group_best, dim=2).values.sum(2)
        best = worth.topk(chosen_groups, dim=1).indices
        closed = torch.ones_like(worth, dtype=torch.bool).scatter_(1, best, value=False)
        ranks = by_group.masked_fill(closed[:, :, None], float("-inf")).flatten(1)
    found = ranks.topk(experts.shape[1], dim=1).indices.sort(dim=1).values
    of_found = scores.gather(1, found)
    if normalized:
        of_found = of_found / (of_found.sum(1, keepdim=True) + 1e-20)
    of_found = of_found * scale
    if scales is not None:
        of_found = of_found * scales[found]
    experts.copy_(found)
    weights.copy_(of_found)
    counted = torch.arange(len(found), device=live.device) < live  # [rows]
    routed.scatter_add_(0, found.flatten(), counted.repeat_interleave(found.shape[1]).long())


def _check(
    logits: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    routed: torch.Tensor,
    live: torch.Tensor,
) -> None:
    if logits.ndim != 2 or experts.ndim != 2 or len(experts) != len(logits):
        raise ValueError(f"logits {[*logits.shape]} and experts {[*experts.shape]} do not fit")
    count, chosen = logits.shape[1], experts.shape[1]
    if not 1 <= chosen <= count or weights.shape != experts.shape or routed.shape != (count,):
        raise ValueError(
            f"{chosen} of {count} experts, weights {[*weights.shape]}, routed {[*routed.shape]}"
        )
    if experts.dtype != torch.int32 or weights.dtype != torch.float32:
        raise ValueError("experts must be int32 and weights float32")
    if routed.dtype != torch.int64 or live.dtype != torch.int64 or live.shape != (1,):
        raise ValueError("routed must be int64, and live int64 [1]")
    if not (experts.is_contiguous() and weights.is_contiguous() and logits.stride(1) == 1):
        raise ValueError("experts, weights and each row of logits must be in one piece")
