"""Names of a checkpoint's weights in a GGUF file.

::

    model.layers.2.mlp.down_proj.weight                blk.2.ffn_down.weight
    model.layers.2.mlp.experts.5.down_proj.weight      blk.2.ffn_down_exps.weight, the sixth of it
    model.layers.2.mlp.experts.gate_up_proj[5].T       blk.2.ffn_gate_exps.weight and ffn_up_exps,
                                                       the sixths, their rows in turn
"""

import re
from typing import NamedTuple

from pyengine.model.weights.stacked import place

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
    "self_attn.sinks": "attn_sinks",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
OF_EXPERTS = {
    "gate_proj": ("ffn_gate_exps",),
    "up_proj": ("ffn_up_exps",),
    "down_proj": ("ffn_down_exps",),
    "gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
    "w1": ("ffn_gate_exps",),
    "w3": ("ffn_up_exps",),
    "w2": ("ffn_down_exps",),
}
OTHERWISE = {"gpt-oss": {"post_attention_layernorm": "post_attention_norm"}}
"""Names that only one architecture has."""

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(?:(\d+)\.)?([a-z0-9_]+?)(_bias)?")


class Stored(NamedTuple):
    """The place of a matrix or a vector.

    Attributes:
        names: Of the tensor; of two whose rows come in turn.
        number: Which one of the tensor's it is; None: it is the whole tensor.
    """

    names: tuple[str, ...]
    number: int | None = None


def stored(name: str, architecture: str) -> Stored:
    """The place of a checkpoint's tensor ``name`` in a file of ``architecture``."""
    tensor, number, _ = place(name)
    module, dot, kind = tensor.rpartition(".")
    if kind not in ("weight", "bias"):
        module, kind = f"{module}{dot}{kind}", "weight"
    layer = _LAYER.fullmatch(module)
    if layer is None:
        return Stored((f"{WHOLE.get(module, module)}.{kind}",))
    rest = layer[2]
    expert = _EXPERT.fullmatch(rest)
    if expert is not None and expert[2] in OF_EXPERTS:
        kind = "bias" if expert[3] else kind
        names = OF_EXPERTS[expert[2]]
        number = number if expert[1] is None else int(expert[1])
    else:
        names = (OTHERWISE.get(architecture, {}).get(rest) or OF_LAYERS.get(rest, rest),)
    return Stored(tuple(f"blk.{layer[1]}.{each}.{kind}" for each in names), number)
