"""The least that a device can take: bytes and operations, over what it was measured to do.

Pure functions. A matrix product is bound by its operations or by reading its weights, whichever
takes longer; what is small and stays in the cache is bound by the time to start a kernel at all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True)
class Shape:
    """A Llama's dimensions; ``tied`` is whether the embedding is the output matrix too."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = False

    @classmethod
    def of(cls, config: dict[str, Any]) -> "Shape":
        """From a config.json in Hugging Face's spelling."""
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            hidden=hidden,
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            vocabulary=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings")),
        )

    @property
    def qkv_width(self) -> int:
        """Columns of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def layer_matrix_elements(self) -> int:
        """Elements of one layer's matrices: qkv, output, gate and up, down."""
        attention = self.hidden * (self.qkv_width + self.heads * self.head_dim)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def embedding_elements(self) -> int:
        """Elements of the embedding; the output matrix has as many."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All of them."""
        norms = (2 * self.layers + 1) * self.hidden
        embeddings = self.embedding_elements * (1 if self.tied else 2)
        return self.layers * self.layer_matrix_elements + embeddings + norms


LLAMA_3_8B = Shape(
    layers=32, hidden=4096, intermediate=14336, heads=32, kv_heads=8, head_dim=128,
    vocabulary=128_256,
)  # fmt: skip


@dataclass(frozen=True)
class Ceilings:
    """The measured limits of a device.

    Attributes:
        copy_bytes_per_s: Of a copy within its memory; bytes read and bytes written, added up.
        read_bytes_per_s: Of reading a large buffer.
        flops: Of a large matrix product in the model's type, in operations a second.
        launch_s: Seconds from one tiny kernel to the next, as the floors' works are launched.
    """

    copy_bytes_per_s: float
    read_bytes_per_s: float
    flops: float
    launch_s: float = 0.0

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]]) -> "Ceilings":
        """The best of what ``ceilings.py`` measured."""
        best: dict[str, float] = {}
        for row in rows:
            if row["per_second"] is not None:
                best[row["what"]] = max(best.get(row["what"], 0.0), row["per_second"])
        return cls(best["copy"], best["read"], best["matmul"], 1.0 / best["launch"])

    def seconds(self, read: float = 0.0, copied: float = 0.0, flops: float = 0.0) -> float:
        """The floor of work that reads ``read`` bytes, moves ``copied`` (read and written), and
        computes so much: all at once, so that the slowest counts.
        """
        memory = read / self.read_bytes_per_s + copied / self.copy_bytes_per_s
        return max(memory, flops / self.flops, self.launch_s)


def kv_token_bytes(shape: Shape, item: int = 2) -> int:
    """Bytes of keys and values of one token in all layers."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * item


def weight_bytes_read(shape: Shape, rows: int, item: int = 2) -> int:
    """Bytes of weights that a step reads: everything once, of the embedding ``rows`` rows."""
    read = shape.parameters + rows * shape.hidden
    if not shape.tied:
        read -= shape.embedding_elements
    return read * item


def decode_bytes(
    shape: Shape, rows: int, kv_tokens: float, item: int = 2, kv_item: int = 2
) -> float:
    """Bytes that a decode step reads: the weights once, and ``kv_tokens`` (of all rows) of KV."""
    return weight_bytes_read(shape, rows, item) + kv_tokens * kv_token_bytes(shape, kv_item)


def prefill_flops(shape: Shape, tokens: int, cached: int = 0, logits: int = 1) -> float:
    """Operations of a prefill of ``tokens`` tokens behind ``cached`` ones.

    Two a weight and token, the output matrix for ``logits`` tokens only; of attention, products
    with keys and with values up to each token's own place.
    """
    matrices = 2.0 * shape.layers * shape.layer_matrix_elements * tokens
    output = 2.0 * shape.embedding_elements * logits
    pairs = tokens * cached + tokens * (tokens + 1) / 2
    attention = 4.0 * shape.layers * shape.heads * shape.head_dim * pairs
    return matrices + output + attention


def step_flops(shape: Shape, rows: int, each: int, context: int) -> float:
    """Operations of a step: ``rows`` rows, ``each`` tokens behind ``context``, all sampled."""
    return rows * prefill_flops(shape, each, context, each)


def step_seconds(
    ceilings: Ceilings, shape: Shape, rows: int, each: int, context: float, item: int = 2
) -> float:
    """The floor of a step of ``rows`` rows with ``each`` new tokens and ``context`` before them."""
    kv_tokens = rows * (context + each)
    read = decode_bytes(shape, rows * each, kv_tokens, item, item)
    return ceilings.seconds(read=read, flops=step_flops(shape, rows, each, round(context)))


def prefill_seconds(ceilings: Ceilings, shape: Shape, tokens: int, item: int = 2) -> float:
    """The floor of a prompt's prefill: its operations, or reading the weights once."""
    read = weight_bytes_read(shape, min(tokens, shape.vocabulary), item)
    return ceilings.seconds(read=read, flops=prefill_flops(shape, tokens))
