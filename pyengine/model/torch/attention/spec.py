"""Heads and data types of layers, as attention on a torch device needs them. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionSpec:
    """The heads and data types of a kind of layers, or of a rank's share of them.

    Most models have one kind. There are several where layers differ in their heads, or where some
    attend in chunks.

    Attributes:
        num_heads: Query heads.
        num_kv_heads: Key and value heads; divides ``num_heads``.
        head_dim: Elements of a head.
        dtype: The type of queries and results: ``float32``, ``bfloat16`` or ``float16``.
        kv_dtype: The type of the cache: the same, or ``float8_e4m3fn``.
        block_size: Tokens in a page.
        max_rows: Most rows of a step.
        max_tokens: Most query tokens of a step.
        max_pages: Most page indices of a step.
        max_context: Most tokens of a sequence.
        sinks: Whether layers have attention sinks.
        chunks: Whether queries see keys of their own chunk alone.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    kv_dtype: str
    block_size: int
    max_rows: int
    max_tokens: int
    max_pages: int
    max_context: int
    sinks: bool = False
    chunks: bool = False
