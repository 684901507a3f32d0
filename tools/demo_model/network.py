"""The Llama architecture in plain torch, for training.

Parameter names and arithmetic are those of Hugging Face's LlamaForCausalLM, so
that the state dict is its checkpoint.  Leaving out everything that training
does not need makes a step faster on a CPU.
"""

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["DRAFT", "MAIN", "Network", "Shape"]


@dataclass(frozen=True)
class Shape:
    """The sizes of a network; the fields' names are those of config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 32
    vocab_size: int = 2048
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0

    def as_config(self) -> dict[str, object]:
        """Contents of config.json, without the ids of special tokens."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **dataclasses.asdict(self),
            "attention_bias": False,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "mlp_bias": False,
            "rope_scaling": None,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
        }


MAIN = Shape(192, 512, 4, 6, 2)
DRAFT = Shape(112, 288, 2, 4, 1)


class Norm(nn.Module):
    """Root-mean-square norm over the last axis, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x [..., size], keeping its shape."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [batch, heads, time, head_dim] by its positions' angles."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        size, dim = shape.hidden_size, shape.head_dim
        self.q_proj = nn.Linear(size, shape.num_attention_heads * dim, bias=False)
        self.k_proj = nn.Linear(size, shape.num_key_value_heads * dim, bias=False)
        self.v_proj = nn.Linear(size, shape.num_key_value_heads * dim, bias=False)
        self.o_proj = nn.Linear(shape.num_attention_heads * dim, size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Mix x [batch, time, hidden] over time; same shape."""
        batch, time, _ = x.shape
        q, k, v = (
            project(x).view(batch, time, -1, self.shape.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        groups = self.shape.num_attention_heads // self.shape.num_key_value_heads
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
        # On a CPU, at these lengths, the plain products are faster than the
        # fused attention, above all backwards.
        future = torch.full((time, time), -torch.inf, dtype=q.dtype).triu(1)
        scores = (q * self.shape.head_dim**-0.5) @ k.transpose(-1, -2) + future
        mixed = scores.softmax(-1).to(v.dtype) @ v
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, time, -1))
        return out


class Gated(nn.Module):
    """The gated feed-forward part of a layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [batch, time, hidden] place by place; same shape."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and feed-forward, each on a normalised residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = Gated(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """One layer's update of x [batch, time, hidden]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Body(nn.Module):
    """Embeddings, layers and the last norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)


class Network(nn.Module):
    """A Llama with tied embeddings."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
        exponents = torch.arange(0, shape.head_dim, 2) / shape.head_dim
        positions = torch.arange(shape.max_position_embeddings).float()
        angles = torch.outer(positions, shape.rope_theta**-exponents).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        """Logits [n, vocab] at ``places`` [n] of the flattened ids [batch, time].

        Only places that are trained on pay for the vocabulary.
        """
        x = self.model.embed_tokens(ids)
        time = ids.shape[1]
        cos, sin = self.cos[:time], self.sin[:time]
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        chosen = self.model.norm(x).flatten(0, 1)[places]
        return F.linear(chosen, self.model.embed_tokens.weight)
