"""Names of a checkpoint's weights in a GGUF file.

::

    model.layers.2.mlp.down_proj.weight                blk.2.ffn_down.weight
    model.layers.2.mlp.experts.5.down_proj.weight      blk.2.ffn_down_exps.weight, the sixth of it
    model.layers.2.mlp.experts.gate_up_proj[5].T       blk.2.ffn_gate_exps.weight and ffn_up_exps,
                                                       the sixths, their rows in turn
    model.layers.2.shared_mlp.input_linear.weight      blk.2.ffn_gate.weight, and below it ffn_up
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from pyengine.model.weights.stacked import place

TABLE = """
token_embd           model.embed_tokens backbone.embeddings transformer.word_embeddings
output_norm          model.norm model.final_layernorm backbone.norm_f transformer.ln_f
token_embd_norm      model.embedding_norm
output               lm_head
per_layer_token_embd model.embed_tokens_per_layer
per_layer_model_proj model.per_layer_model_projection
per_layer_proj_norm  model.per_layer_projection_norm
attn_norm            input_layernorm operator_norm norm ln_attn
ffn_norm             post_attention_layernorm pre_feedforward_layernorm pre_ff_layernorm ffn_norm
post_ffw_norm        post_feedforward_layernorm
pre_ffw_norm_2       pre_feedforward_layernorm_2
post_ffw_norm_1      post_feedforward_layernorm_1
post_ffw_norm_2      post_feedforward_layernorm_2
post_norm            post_per_layer_input_norm
inp_gate             per_layer_input_gate
proj                 per_layer_projection
layer_output_scale   layer_scalar
attn_q               self_attn.q_proj mixer.q_proj
attn_k               self_attn.k_proj mixer.k_proj
attn_v               self_attn.v_proj mixer.v_proj
attn_qkv             self_attn.qkv_proj self_attention.query_key_value linear_attn.in_proj_qkv
attn_output          self_attn.o_proj self_attn.out_proj self_attn.dense mixer.o_proj
attn_output          self_attention.dense
attn_q_norm          self_attn.q_norm self_attn.q_layernorm
attn_k_norm          self_attn.k_norm self_attn.k_layernorm
attn_sinks           self_attn.sinks
attn_q_a             self_attn.q_a_proj
attn_q_a_norm        self_attn.q_a_layernorm
attn_q_b             self_attn.q_b_proj
attn_kv_a_mqa        self_attn.kv_a_proj_with_mqa
attn_kv_a_norm       self_attn.kv_a_layernorm
attn_kv_b            self_attn.kv_b_proj
attn_gate            linear_attn.in_proj_z
ssm_alpha            linear_attn.in_proj_a
ssm_beta             linear_attn.in_proj_b
ssm_in               mamba.in_proj mixer.in_proj
ssm_conv1d           mamba.conv1d mixer.conv1d linear_attn.conv1d
=ssm_dt.bias         mamba.dt_bias mixer.dt_bias linear_attn.dt_bias
=ssm_a               mamba.A_log mixer.A_log linear_attn.A_log
=ssm_d               mamba.D mixer.D
ssm_norm             mamba.norm mixer.norm linear_attn.norm
ssm_out              mamba.out_proj mixer.out_proj linear_attn.out_proj
shortconv.conv       conv.conv
shortconv.in_proj    conv.in_proj
shortconv.out_proj   conv.out_proj
ffn_gate             mlp.gate_proj feed_forward.gate_proj feed_forward.w1
ffn_up               mlp.up_proj feed_forward.up_proj feed_forward.w3 mixer.up_proj
ffn_up               mlp.gate_up_proj mlp.c_fc mlp.fc1 mlp.dense_h_to_4h
ffn_down             mlp.down_proj feed_forward.down_proj feed_forward.w2 mixer.down_proj
ffn_down             mlp.c_proj mlp.fc2 mlp.dense_4h_to_h
ffn_gate_inp         mlp.gate mlp.router feed_forward.gate router.proj mixer.gate
ffn_gate_inp         block_sparse_moe.gate block_sparse_moe.router.layer
=ffn_gate_inp.scale  router.scale
=ffn_down_exps.scale router.per_expert_scale
=exp_probs_b.bias    mlp.gate.e_score_correction_bias feed_forward.expert_bias
=exp_probs_b.bias    mlp.moe_statics.e_score_correction_bias mixer.gate.e_score_correction_bias
ffn_gate_shexp       mlp.shared_expert.gate_proj mlp.shared_experts.gate_proj
ffn_up_shexp         mlp.shared_expert.up_proj mlp.shared_experts.up_proj
ffn_up_shexp         mixer.shared_experts.up_proj
ffn_down_shexp       mlp.shared_expert.down_proj mlp.shared_experts.down_proj
ffn_down_shexp       mixer.shared_experts.down_proj
ffn_latent_down      mixer.fc1_latent_proj
ffn_latent_up        mixer.fc2_latent_proj
ffn_gate_inp_shexp   mlp.shared_expert_gate
ffn_gate_exps        experts.gate_proj experts.w1
ffn_up_exps          experts.up_proj experts.w3
ffn_down_exps        experts.down_proj experts.w2 block_sparse_moe.output_linear
ffn_gate_exps+ffn_up_exps experts.gate_up_proj block_sparse_moe.input_linear
"""
"""Names in files, and of modules of checkpoints, those of a layer without its beginning. A "+" is
between names of weights one below the other; a name that begins with "=" is whole.
"""
NAMES = {
    theirs: ours for ours, *names in map(str.split, TABLE.strip().splitlines()) for theirs in names
}

_LAYER = re.compile(r"(?:model\.layers|backbone\.layers|transformer\.h)\.(\d+)\.(.*)")
_EXPERT = re.compile(
    r"(?:(?:mlp|block_sparse_moe|feed_forward|mixer)\.)?experts\.(?:(\d+)\.)?([a-z0-9_]+?)(_bias)?"
)


class Stored(NamedTuple):
    """The place of a matrix or a vector.

    Attributes:
        names: The tensor's name, or the names of several with its rows.
        number: Which one of the tensor's it is; None: it is the whole tensor.
    """

    names: tuple[str, ...]
    number: int | None = None


def stored(name: str, own: Mapping[str, str] | None = None) -> Stored:
    """The place of a checkpoint's tensor ``name`` in a file.

    Args:
        name: The tensor's.
        own: Names that differ in its family from :data:`NAMES`.
    """
    tensor, number, *_ = place(name)
    module, kind = split(tensor)
    layer = _LAYER.fullmatch(module)
    rest = module if layer is None else layer[2]
    if expert := _EXPERT.fullmatch(rest):
        kind = "bias" if expert[3] else kind
        rest = f"experts.{expert[2]}"
        number = number if expert[1] is None else int(expert[1])
    names = (own or {}).get(rest) or NAMES.get(rest, rest)
    ends = [each[1:] if each[0] == "=" else f"{each}.{kind}" for each in names.split("+")]
    return Stored(
        tuple(ends if layer is None else (f"blk.{layer[1]}.{end}" for end in ends)), number
    )


def split(tensor: str) -> tuple[str, str]:
    """A tensor's module, and which of its weights it is; of a weight alone its name."""
    module, _, kind = tensor.rpartition(".")
    return (module, kind) if kind in ("weight", "bias") else (tensor, "weight")


def within_layer(tensor: str) -> str:
    """The module of a tensor by its name within its layer, or else by its whole name."""
    module, _ = split(place(tensor).tensor)
    layer = _LAYER.fullmatch(module)
    return module if layer is None else layer[2]
