"""Orders in which llama.cpp's converter lays rows of weights out, each undone: for each row of a
checkpoint's weight, which one it is in the file.
"""

import numpy as np

from pyengine.model.weights.gguf.family import Facts, Layout, Order


def neighbours(heads: str) -> Layout:
    """llama.cpp rotates neighbouring elements of a head for Llama, a checkpoint those half of it
    apart: the converter has the halves in turn.

    Args:
        heads: How many heads there are, in metadata.
    """

    def order(facts: Facts, size: int) -> Order:
        count = int(facts.number(heads) or facts.number("attention.head_count"))
        return np.arange(size).reshape(count, -1, 2).swapaxes(1, 2).reshape(size)

    return Layout(order)


NEIGHBOURS = {
    "self_attn.q_proj": neighbours("attention.head_count"),
    "self_attn.k_proj": neighbours("attention.head_count_kv"),
}


def tiled(*, behind_keys: bool = False, by_head: bool = False) -> Layout:
    """Heads of values that share one of keys are neighbours in a checkpoint; the converter has the
    first of each, then the second of each.

    Args:
        behind_keys: Queries and keys come before them, as they are.
        by_head: There is one row for each head, not for each element.
    """

    def order(facts: Facts, size: int) -> Order:
        heads, keys = facts.get("ssm.time_step_rank"), facts.get("ssm.group_count")
        dim = 1 if by_head else facts.get("ssm.inner_size") // heads
        values = np.arange(heads * dim).reshape(-1, keys, dim).swapaxes(0, 1).reshape(-1)
        first = 2 * keys * facts.get("ssm.state_size") if behind_keys else 0
        return np.concatenate((np.arange(first), first + values))

    return Layout(order)


TILED = {
    "linear_attn.in_proj_qkv": tiled(behind_keys=True),
    "linear_attn.conv1d": tiled(behind_keys=True),
    "linear_attn.in_proj_z": tiled(),
    **dict.fromkeys(
        [f"linear_attn.{name}" for name in ("in_proj_a", "in_proj_b", "A_log", "dt_bias")],
        tiled(by_head=True),
    ),
}
TILED_COLUMNS = {"linear_attn.out_proj": tiled()}


def of_both(which: int) -> Layout:
    """One weight has, for each head of keys, the rows of its heads of values of two layers: those
    of the first, or of the second.
    """

    def order(facts: Facts, size: int) -> Order:
        keys = facts.get("ssm.group_count")
        return np.arange(2 * size).reshape(keys, 2, -1)[:, which].reshape(-1)

    return Layout(order, 2)


def _by_kind(facts: Facts, size: int) -> Order:
    """A checkpoint has each head of keys and of values behind the heads of queries that read them,
    the converter all queries, all keys, and all values.
    """
    heads, groups = facts.get("attention.head_count"), facts.get("attention.head_count_kv", 1)
    dim = size // (heads + 2 * groups)
    queries = np.arange(heads).reshape(groups, -1)
    own = heads + np.arange(groups)[:, None]
    order: Order = np.concatenate((queries, own, own + groups), 1).reshape(-1, 1)
    rows: Order = order * dim + np.arange(dim)
    return rows.reshape(-1)


HEADS_TOGETHER = {"self_attention.query_key_value": Layout(_by_kind)}
