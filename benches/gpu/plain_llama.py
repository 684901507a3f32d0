"""A Llama in plain torch, as one writes it to decode one batch as fast as torch alone can.

A cache of fixed length that every step attends over, masked; one step of one token for each
sequence; nothing paged, batched on the fly or shared. In the manner of gpt-fast: it becomes fast by
``torch.compile`` alone. The peer of ``baselines.py``.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benches.gpu.floors import Shape

ROPE_BASE = 500_000.0
EPSILON = 1e-5


class Layer(nn.Module):
    """Attention and MLP, with the cache of this layer."""

    keys: Tensor
    values: Tensor

    def __init__(self, shape: Shape, batch: int, length: int) -> None:
        super().__init__()
        self.shape = shape
        width = shape.heads * shape.head_dim
        self.attention_norm = nn.RMSNorm(shape.hidden, EPSILON)
        self.qkv = nn.Linear(shape.hidden, shape.qkv_width, bias=False)
        self.output = nn.Linear(width, shape.hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(shape.hidden, EPSILON)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)
        for name in ("keys", "values"):
            cache = torch.zeros(batch, shape.kv_heads, length, shape.head_dim)
            self.register_buffer(name, cache, persistent=False)

    def forward(self, x: Tensor, angles: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """Take x [batch, 1, hidden] at ``position`` [1] to the same shape."""
        shape, batch = self.shape, len(x)
        heads = self.qkv(self.attention_norm(x)).view(batch, 1, -1, shape.head_dim)
        query, key, value = heads.transpose(1, 2).split(
            [shape.heads, shape.kv_heads, shape.kv_heads], dim=1
        )  # [batch, heads, 1, head_dim] each
        self.keys.index_copy_(2, position, rotated(key, angles))
        self.values.index_copy_(2, position, value)
        # With one token a sequence, the heads that share keys are like tokens that do: so every
        # kernel of torch can be taken, and none has to repeat the keys.
        grouped = rotated(query, angles).view(batch, shape.kv_heads, -1, shape.head_dim)
        attended = F.scaled_dot_product_attention(grouped, self.keys, self.values, attn_mask=mask)
        x = x + self.output(attended.view(batch, 1, -1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        out: Tensor = x + self.down(F.silu(gate) * up)
        return out


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of [.., head_dim] by angles [2, head_dim / 2], cosines and sines."""
    low, high = x.float().chunk(2, dim=-1)
    cosines, sines = angles
    turned = (low * cosines - high * sines, high * cosines + low * sines)
    return torch.cat(turned, dim=-1).to(x.dtype)


class PlainLlama(nn.Module):
    """The model, with caches for ``batch`` sequences of ``length`` tokens."""

    angles: Tensor

    def __init__(self, shape: Shape, batch: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, batch, length) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, EPSILON)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, ids: Tensor, position: Tensor, angles: Tensor, places: Tensor) -> Tensor:
        """Tokens [batch] at ``position`` int64 [1] -> the likeliest next ones, int64 [batch].

        ``angles`` is [length, 2, head_dim / 2] in float32, ``places`` 0 to length - 1.
        """
        mask = (places <= position)[None, None, None]  # [1, 1, 1, length]
        x = self.embedding(ids)[:, None]
        turn = angles.index_select(0, position)[0]
        for layer in self.layers:
            x = layer(x, turn, position, mask)
        logits: Tensor = self.head(self.norm(x))[:, 0]  # [batch, vocabulary]
        return logits.argmax(dim=-1)


def rope_angles(shape: Shape, length: int, device: torch.device) -> Tensor:
    """Cosines and sines, float32 [length, 2, head_dim / 2]."""
    exponents = torch.arange(0, shape.head_dim, 2, device=device).float() / shape.head_dim
    turns = torch.outer(torch.arange(length, device=device).float(), ROPE_BASE**-exponents)
    return torch.stack((turns.cos(), turns.sin()), dim=1)


def made(
    shape: Shape, batch: int, length: int, device: torch.device, dtype: torch.dtype
) -> PlainLlama:
    """A model of random weights on ``device``."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            model = PlainLlama(shape, batch, length)
    finally:
        torch.set_default_dtype(before)
    model.to_empty(device=device).eval()
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            weight.data.fill_(1.0)
        else:
            weight.data.normal_(0.0, 0.02)
    for cache in model.buffers():
        cache.zero_()
    return model.requires_grad_(False)
