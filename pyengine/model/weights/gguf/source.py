"""The weights of a GGUF file, by the names of the dense checkpoint they were made from."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.weights.gguf.file import Entry, GgufFile
from pyengine.model.weights.matrix import Part

WHOLE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
OF_LAYERS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
PERMUTED = {
    "self_attn.q_proj": "attention.head_count",
    "self_attn.k_proj": "attention.head_count_kv",
}
"""Layers whose rows llama.cpp has in another order, and which number of heads counts."""


def stored_name(name: str) -> str:
    """What a GGUF file calls the tensor that a checkpoint calls ``name``."""
    module, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", module)
    if layer:
        return f"blk.{layer[1]}.{OF_LAYERS.get(layer[2], layer[2])}.{kind}"
    return f"{WHOLE.get(module, module)}.{kind}"


class GgufWeights:
    """The tensors of one file; see :class:`pyengine.model.weights.sharding.Source`."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.nbytes = file.nbytes

    @property
    def is_quantized(self) -> bool:
        """Whether any tensor is."""
        return any(entry.type.numbers > 1 for entry in self._file.tensors.values())

    def vector(self, name: str, size: int) -> NDArray[Any]:
        """See :class:`Source`."""
        entry = self._entry(name, (size,))
        vector: NDArray[Any] = entry.type.read(entry.rows[:, None]).dequantized()[0]
        order = self._order(name, size)
        return vector if order is None else vector[order]

    def matrix(self, name: str, shape: tuple[int, int], rows: slice, columns: slice) -> Part:
        """See :class:`Source`."""
        entry, order = self._entry(name, shape), self._order(name, shape[0])
        mine = entry.rows[rows] if order is None else entry.rows[order[rows]]
        size = entry.type.nbytes
        return entry.type.read(mine.reshape(len(mine), -1, size)).columns(columns)

    def _entry(self, name: str, shape: tuple[int, ...]) -> Entry:
        stored = stored_name(name)
        entry = self._file.tensors.get(stored)
        if entry is None:
            raise ModelLoadError(f"{self._file.path} lacks {stored!r}, which is {name!r}")
        if entry.shape != shape:
            raise ModelLoadError(
                f"{stored!r} in {self._file.path} has shape {list(entry.shape)}; its metadata "
                f"wants {list(shape)}"
            )
        return entry

    def _order(self, name: str, size: int) -> NDArray[np.intp] | None:
        """Where the rows of a tensor lie in the file; None: in order.

        llama.cpp rotates neighbouring elements of a head for Llama, the first half with the second
        for others. Its converter reorders the rows of queries and keys, which this undoes.
        """
        metadata = self._file.metadata
        heads = next((PERMUTED[part] for part in PERMUTED if part in name), None)
        if heads is None or metadata["general.architecture"] != "llama":
            return None
        count = metadata.get(f"llama.{heads}", metadata["llama.attention.head_count"])
        return np.arange(size).reshape(count, -1, 2).swapaxes(1, 2).reshape(size)
