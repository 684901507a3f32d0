"""Random models of the bench, Llamas and a mixture of experts, as a folder in Hugging Face format
and as a GGUF file.

Tokens are random, but nearly all of them are words of letters: each shows as text at once, so that
every server streams one chunk for each token.
"""

import itertools
import json
import re
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 50_304
END = "<|end|>"
HEAD_DIM = 64
CONTEXT = 2048
EPSILON, THETA = 1e-5, 10_000.0


@dataclass(frozen=True)
class Shape:
    """A Llama with tied embeddings, or with experts a Qwen3-MoE.

    Attributes:
        name: What the bench calls it.
        hidden: Width of the residual.
        layers: Transformer layers.
        heads: Query heads of 64 elements.
        kv_heads: Key and value heads.
        inner: Width of the feed-forward layer, or of an expert.
        experts: Of a layer; 0: it has one feed-forward layer.
        chosen: Experts that a token goes to.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    experts: int = 0
    chosen: int = 1

    @property
    def matrices(self) -> int:
        """Numbers that a step multiplies a token with: all layers, and the head."""
        attention = 2 * self.hidden * HEAD_DIM * (self.heads + self.kv_heads)
        inner = self.chosen * self.inner + self.experts / 3  # of the router is one matrix
        layer = attention + round(3 * self.hidden * inner)
        return self.layers * layer + VOCABULARY * self.hidden

    @property
    def cache_elements(self) -> int:
        """Numbers of the KV cache for each token."""
        return 2 * self.layers * self.kv_heads * HEAD_DIM


SHAPES = {
    "S": Shape("S", hidden=512, layers=8, heads=8, kv_heads=4, inner=1408),
    "L": Shape("L", hidden=1024, layers=16, heads=16, kv_heads=8, inner=2816),
    "M": Shape("M", 512, layers=8, heads=8, kv_heads=4, inner=384, experts=32, chosen=4),
}


def vocabulary() -> list[str]:
    """The tokens in the order of their ids: bytes, words, and the end."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ("".join(word) for word in itertools.product(string.ascii_lowercase, repeat=4))
    return [*letters, *itertools.islice(words, VOCABULARY - len(letters) - 1), END]


def tensors(shape: Shape) -> dict[str, NDArray[Any]]:
    """Weights in bfloat16 by their names in Hugging Face's format: normal, of deviation 0.02."""
    noise = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> NDArray[Any]:
        numbers = noise.standard_normal((rows, columns), np.float32) * np.float32(0.02)
        return numbers.astype(ml_dtypes.bfloat16)

    width, kv = shape.heads * HEAD_DIM, shape.kv_heads * HEAD_DIM
    ones = np.ones(shape.hidden, ml_dtypes.bfloat16)
    made = {
        "model.embed_tokens.weight": matrix(VOCABULARY, shape.hidden),
        "model.norm.weight": ones,
    }
    for index in range(shape.layers):
        layer = f"model.layers.{index}."
        made |= {
            f"{layer}input_layernorm.weight": ones,
            f"{layer}post_attention_layernorm.weight": ones,
            f"{layer}self_attn.q_proj.weight": matrix(width, shape.hidden),
            f"{layer}self_attn.k_proj.weight": matrix(kv, shape.hidden),
            f"{layer}self_attn.v_proj.weight": matrix(kv, shape.hidden),
            f"{layer}self_attn.o_proj.weight": matrix(shape.hidden, width),
        }
        if shape.experts:
            head = np.ones(HEAD_DIM, ml_dtypes.bfloat16)
            made |= {f"{layer}self_attn.{which}_norm.weight": head for which in "qk"}
            made[f"{layer}mlp.gate.weight"] = matrix(shape.experts, shape.hidden)
        experts = [f"{layer}mlp.experts.{at}." for at in range(shape.experts)]
        for prefix in experts or [f"{layer}mlp."]:
            made |= {
                f"{prefix}gate_proj.weight": matrix(shape.inner, shape.hidden),
                f"{prefix}up_proj.weight": matrix(shape.inner, shape.hidden),
                f"{prefix}down_proj.weight": matrix(shape.hidden, shape.inner),
            }
    return made


def write_folder(folder: Path, shape: Shape, weights: dict[str, NDArray[Any]]) -> None:
    """Write ``shape`` in Hugging Face format."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": VOCABULARY - 1,
    }
    if shape.experts:
        config |= {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.chosen,
            "moe_intermediate_size": shape.inner,
            "norm_topk_prob": True,
        }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    tokens = vocabulary()
    ids = {token: index for index, token in enumerate(tokens) if token != END}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END})
    )


GGUF_TYPES = {
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "int8": "Q8_0",
    "int4": "Q4_0",
}
"""What a GGUF file is written in, by the data type of the bench."""


def write_gguf(path: Path, shape: Shape, weights: dict[str, NDArray[Any]], dtype: str) -> None:
    """Write ``shape`` as a GGUF file; with int4 its embedding, which is its head, has 8 bits."""
    import gguf

    writer = gguf.GGUFWriter(path, "qwen3moe" if shape.experts else "llama")
    writer.add_name(shape.name)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(THETA)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.chosen)
        writer.add_expert_feed_forward_length(shape.inner)
    writer.add_vocab_size(VOCABULARY)
    tokens = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.NORMAL] * (VOCABULARY - 1) + [gguf.TokenType.CONTROL]
    writer.add_token_types(kinds)
    # The format wants one; no token is made of these two.
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(VOCABULARY - 1)
    writer.add_add_bos_token(False)
    for name, tensor in _stacked(weights).items():
        numbers = tensor.astype(np.float32)
        if not shape.experts and name.endswith(("q_proj.weight", "k_proj.weight")):
            numbers = _rotated_in_pairs(numbers)
        kind = "F32" if numbers.ndim == 1 or "mlp.gate." in name else GGUF_TYPES[dtype]
        if dtype == "int4" and "embed" in name:
            kind = "Q8_0"
        stored = gguf.GGMLQuantizationType[kind]
        packed = gguf.quants.quantize(numbers, stored)
        writer.add_tensor(_gguf_name(name), packed, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _stacked(weights: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """``weights`` with the experts of a layer in one tensor."""
    found: dict[str, list[NDArray[Any]]] = {}
    for name, tensor in weights.items():
        found.setdefault(re.sub(r"experts\.\d+", "experts", name), []).append(tensor)
    return {name: np.stack(of) if "experts" in name else of[0] for name, of in found.items()}


def _rotated_in_pairs(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of a head as llama.cpp rotates them: neighbours, in place of halves."""
    heads = weight.reshape(-1, 2, HEAD_DIM // 2, weight.shape[1])
    return heads.swapaxes(1, 2).reshape(weight.shape)


def _gguf_name(name: str) -> str:
    parts = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "q_proj": "attn_q",
        "k_proj": "attn_k",
        "v_proj": "attn_v",
        "o_proj": "attn_output",
        "gate_proj": "ffn_gate",
        "up_proj": "ffn_up",
        "down_proj": "ffn_down",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "gate": "ffn_gate_inp",
    }
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in names:
        return names[name]
    pieces = name.split(".")
    of_experts = "_exps" if "experts" in pieces else ""
    return f"blk.{pieces[2]}.{parts[pieces[-2]]}{of_experts}.weight"
