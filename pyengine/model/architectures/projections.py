"""The linear layers and norms of a decoder, with Llama's names for the weights.

A rank has a share of each: of the outputs of ``qkv`` and ``gate_up``, of the inputs of ``out`` and
``down``.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.parts import LayerAttention, Linear, Norm, Parts
from pyengine.model.architectures.rotary import rotary_table
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import Weights


class Projections:
    """Makes the linear layers and norms of a decoder, each from its weights. One thread at a time.

    An architecture with other weights overrides the methods that make them.

    Attributes:
        info: The model's dimensions and data types.
        config: Its config.json.
        weights: Those of the parts' rank.
        parts: The parts of the device.
    """

    def __init__(
        self,
        info: ModelInfo,
        config: Mapping[str, Any],
        weights: Weights,
        parts: Parts,
        *,
        qkv_bias: bool = False,
        out_bias: bool = False,
        mlp_bias: bool = False,
        default_epsilon: float = 1e-6,
    ) -> None:
        """The projections of Llama.

        Args:
            info: The model's dimensions and data types.
            config: Its config.json.
            weights: Those of the parts' rank.
            parts: The parts of the device.
            qkv_bias: Whether queries, keys and values have a bias.
            out_bias: Whether attention's output has a bias.
            mlp_bias: Whether the feed-forward layer's projections have a bias.
            default_epsilon: Epsilon of norms, where config.json has no ``rms_norm_eps``.
        """
        self.info = info
        self.config = config
        self.weights = weights
        self.parts = parts
        self.epsilon = default_epsilon
        if config.get("rms_norm_eps") is not None:
            self.epsilon = float(config["rms_norm_eps"])
        self._qkv_bias = qkv_bias
        self._out_bias = out_bias
        self._mlp_bias = mlp_bias

    @property
    def heads(self) -> tuple[int, int, int]:
        """Widths of all ranks' queries, keys and values."""
        kv = self.info.num_kv_heads * self.info.head_dim
        return self.info.num_heads * self.info.head_dim, kv, kv

    @property
    def inner(self) -> int:
        """Width of the feed-forward layer, over all ranks.

        Raises:
            ModelLoadError: config.json does not say.
        """
        inner = self.config.get("intermediate_size")
        if not isinstance(inner, int) or inner < 1:
            raise ModelLoadError(
                f"config.json: 'intermediate_size' must be positive, not {inner!r}"
            )
        return inner

    def attention(self) -> list[LayerAttention]:
        """How each layer attends."""
        angles = rotary_table(self.config, self.info.head_dim, self.info.max_context)
        scale = self.info.head_dim**-0.5
        return [
            LayerAttention(angles=angles, scale=scale, window=window)
            for window in self.info.windows
        ]

    def norm(self, name: str) -> Norm:
        """The norm called ``name``, of hidden states."""
        weight = self.weights.vector(f"{name}.weight", self.info.hidden_size)
        return self.parts.norm(weight, self.epsilon)

    def qkv(self, attention: str) -> Linear:
        """From hidden states to queries, keys and values; ``attention`` begins the names."""
        queries, keys, values = self.heads
        rows = {"q_proj": queries, "k_proj": keys, "v_proj": values}
        return self._outputs(attention, rows, self._qkv_bias)

    def out(self, attention: str) -> Linear:
        """From attention's output to hidden states."""
        return self._inputs(f"{attention}o_proj", self.heads[0], self._out_bias)

    def gate_up(self, mlp: str) -> Linear:
        """From hidden states to gates, then ups."""
        rows = {"gate_proj": self.inner, "up_proj": self.inner}
        return self._outputs(mlp, rows, self._mlp_bias)

    def down(self, mlp: str) -> Linear:
        """From the feed-forward layer's width to hidden states."""
        return self._inputs(f"{mlp}down_proj", self.inner, self._mlp_bias)

    def _outputs(self, prefix: str, rows: Mapping[str, int], has_bias: bool) -> Linear:
        def named(kind: str) -> dict[str, int]:
            return {f"{prefix}{name}.{kind}": count for name, count in rows.items()}

        weight = self.weights.outputs(named("weight"), self.info.hidden_size)
        bias = self.weights.vectors(named("bias")) if has_bias else None
        return self.parts.linear(weight, bias)

    def _inputs(self, name: str, width: int, has_bias: bool) -> Linear:
        hidden = self.info.hidden_size
        weight = self.weights.inputs(f"{name}.weight", hidden, width)
        bias = self.weights.vector(f"{name}.bias", hidden) if has_bias else None
        return self.parts.linear(weight, bias, reduce=True)


def refuse(config: Mapping[str, Any], *names: str) -> None:
    """Check that config.json asks for nothing by these names.

    Raises:
        ModelLoadError: One of them is there, and is neither false nor null.
    """
    for name in names:
        if config.get(name):
            raise ModelLoadError(
                f"config.json: {name!r} of {config[name]!r} is not supported by "
                f"{(config.get('architectures') or ['this architecture'])[0]}"
            )
