"""The parts of a device that architectures are built from, as protocols.

An architecture makes its buffers and layers by a device's :class:`Parts` once and calls them in
every step, with the same code on every device: the Rust kernels (:mod:`pyengine.model.cpu.layers`)
or torch (:mod:`pyengine.model.torch.layers.parts`). Where several ranks share a model, parts and
weights are those of one rank: an architecture divides its heads and widths by ``ranks``, and marks
the layers that sum over all ranks::

    x ──► linear (a share of the outputs) ──► ... ──► linear (a share of the inputs), reduce=True

(Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019.)

A step allocates nothing: every layer writes into a :class:`Buffer` made for the largest step, of
which a step takes the first rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.experts import ExpertWeights, Routing
from pyengine.model.architectures.latent_parts import HeadLinear, Latents
from pyengine.model.architectures.state_parts import GatedNorm, GateFunction, States
from pyengine.model.dtypes import ITEM_BYTES
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.matrix import Matrix

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""The kernels' activations, by their names in a config.json."""


@dataclass(frozen=True)
class Activation:
    """A feed-forward layer's activation.

    Attributes:
        kind: ``silu``, ``gelu``, ``gelu_tanh``, ``relu``, ``relu2``, ``clamped_swiglu`` or
            ``xielu``, which only layers without gates have.
        limit: The largest number of the clamped one; None for the others.
        weights: Of ``xielu`` that of the square above 0, that of the exponential below, and the
            slope at 0; None for the others.
    """

    kind: str
    limit: float | None = None
    weights: tuple[float, float, float] | None = None


SILU = Activation("silu")


LOGITS_BYTES = 64 << 20
"""Memory of the logits of one call on a CPU, or a GPU that is not a large one."""


class Step(Protocol):
    """The step as a device's parts read it: fields of :class:`pyengine.model.batch.StepBuffers`.

    Attributes:
        token_ids: int32 [T], as the device's kernels take it.
        positions: int32 [T], that of each token in its sequence.
        logit_token: int32 [L], the tokens whose logits are wanted.
        pool_token: int32 [P], the tokens whose last hidden states are wanted.
        prompt_token: int32 [P], the tokens of prompts whose logits are wanted.
    """

    token_ids: Any
    positions: Any
    logit_token: Any
    pool_token: Any
    prompt_token: Any


class Table(Protocol):
    """Rows to look up, such as embeddings [vocabulary, width]."""

    def __call__(self, index: Any, out: Buffer, rows: int) -> None:
        """``out[i]`` becomes row ``index[i]`` for i below ``rows``; ``index`` is a step's."""


class Linear(Protocol):
    """x W^T + b, from one buffer into another."""

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""


class Norm(Protocol):
    """Normalization of rows, with the residual addition before it."""

    def __call__(self, residual: Buffer, branch: Buffer | None, out: Buffer, rows: int) -> None:
        """Add ``branch`` to ``residual`` in place, and normalize the sum into ``out``.

        ``out`` is neither of the two.
        """


class Rotation(Protocol):
    """Rotation of queries and keys before attention, which has none for them then."""

    def __call__(self, step: Step, qkv: Buffer, rows: int) -> None:
        """Rotate in place, each row by its position; values stay."""


class HeadNorm(Protocol):
    """Root mean square normalization of queries and keys."""

    def __call__(self, qkv: Buffer, rows: int) -> None:
        """Normalize in place: [rows, (heads + 2 * kv heads) * head_dim]; values stay."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerAttention:
    """How one layer attends. Layers that share their angles are given the same array.

    Attributes:
        angles: float32 [context, head_dim], cosines, then sines, of the layer's rotation: see
            :func:`pyengine.model.architectures.rotary.rotary_table`. Cosines of 1 and sines of 0
            rotate nothing.
        scale: Multiplies the scores; mostly ``head_dim ** -0.5``.
        window: Keys that a query sees, the last of them its own; None is all before it. It is the
            layer's in :attr:`pyengine.model.runner.ModelInfo.layers`.
        chunk: Positions of a chunk, of which a query sees the keys of its own; None: of all.
        soft_cap: Scores become ``soft_cap * tanh(score / soft_cap)`` (Gemma 2).
        sinks: float32 [heads of this rank], a logit for each query head that takes a share of the
            softmax and has no value (gpt-oss). A device's layers hold its own copy.
        temperatures: float32 [context], what multiplies the scores of the query at each position;
            None: nothing.
        key_scale: What the numbers of a cache of 8-bit floats mean: keys are divided by it as they
            are stored, and multiplied as they are read. A cache of another type has none.
        value_scale: The same of values.
    """

    angles: NDArray[np.float32]
    scale: float
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    sinks: Any = None
    temperatures: NDArray[np.float32] | None = None
    key_scale: float = 1.0
    value_scale: float = 1.0


class Attention(Protocol):
    """The KV cache of all layers, and causal attention over it."""

    def __call__(self, layer: int, step: Any, qkv: Buffer, out: Buffer, tokens: int) -> None:
        """Rotate queries and keys, store keys and values, attend.

        ``qkv`` is [tokens, (heads + 2 * kv heads) * head_dim], ``out`` [tokens, heads * head_dim];
        both may be written. Where the layer reads another one's keys and values, ``qkv`` has
        queries alone.
        """


class Experts(Protocol):
    """The feed-forward layers of all experts, each row through those that are chosen for it."""

    def __call__(self, logits: Buffer, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, experts], [rows, hidden] -> ``out`` [rows, hidden], the sum over all ranks."""


class Parts(Protocol):
    """Makes a device's layers and buffers, for one rank. One thread at a time.

    The first methods are called while the model is loaded; those from :meth:`gather` on in every
    step. Buffers and layers keep their memory for as long as the model lives. Weights come
    as :class:`pyengine.model.weights.sharding.Weights` gives them, dense or quantized; a device
    copies them, and computes with them as they are or with the numbers that they mean.

    Attributes:
        ranks: Ranks that share the model.
        expert_parallel: Whether each of them has whole experts, not a share of each.
        max_tokens: Most tokens in a step.
        max_sampled: Most rows whose logits are wanted in a step.
        logits_bytes: Most memory of the logits of one call; a step that samples more rows takes
            several calls, each of which reads the head's weights.
    """

    ranks: int
    expert_parallel: bool
    max_tokens: int
    max_sampled: int
    logits_bytes: int

    def buffer(self, rows: int, width: int) -> Buffer:
        """Zeros [rows, width] in the model's data type."""

    def table(self, weight: Matrix) -> Table:
        """Rows to look up, those of ``weight``, which all ranks have."""

    def shared_table(self, weight: Matrix, rows: int) -> Table:
        """Rows to look up, of which ``weight`` has this rank's share.

        Args:
            weight: As :meth:`pyengine.model.weights.sharding.Weights.outputs` gives it.
            rows: The rows of all ranks.
        """

    def linear(
        self, weight: Matrix, bias: NDArray[Any] | None = None, *, reduce: bool = False
    ) -> Linear:
        """A linear layer of this rank.

        Args:
            weight: [out, in].
            bias: [out], of floats.
            reduce: The rank has a share of the inputs: the results of all ranks are summed, and
                the bias, which all of them have, is added once.
        """

    def linear_by_head(self, weights: Sequence[Matrix]) -> HeadLinear:
        """A linear layer for each of this rank's heads; ``weights`` are [out, in], of one shape."""

    def head(self, weight: Matrix, info: ModelInfo, bias: NDArray[Any] | None = None) -> Linear:
        """From hidden states to the logits of all ranks' shares of the vocabulary.

        ``weight`` may be a table's: the device may share its memory. ``bias`` is this rank's share.
        """

    def norm(self, weight: NDArray[Any], epsilon: float) -> Norm:
        """A root mean square norm of rows of ``weight``'s length; ``weight`` is [width]."""

    def layer_norm(self, weight: NDArray[Any], bias: NDArray[Any] | None, epsilon: float) -> Norm:
        """As :meth:`norm`, with the mean subtracted; ``bias`` is [width] or None."""

    def no_norm(self) -> Norm:
        """In the place of a norm: adds, and copies the sum."""

    def head_norm(
        self,
        query_weight: NDArray[Any],
        key_weight: NDArray[Any],
        epsilon: float,
        heads: int,
        *,
        whole: bool = False,
        values: bool = False,
    ) -> HeadNorm:
        """Norms of this rank's queries and keys.

        Args:
            query_weight: [head_dim], the same for all query heads; or this rank's share of the
                weight of all queries.
            key_weight: The same for keys.
            epsilon: Added to the mean of the squares.
            heads: Query heads of this rank. What a row has behind them are keys and values, as
                many of one as of the other; none at all are possible.
            whole: A row's queries are normalized as one, over all ranks, and so are its keys.
            values: Each head of values is normalized, too, without a weight.
        """

    def rotation(self, angles: NDArray[np.float32], heads: int) -> Rotation:
        """Of this rank's queries and keys, ``heads`` in all.

        Args:
            angles: As :attr:`LayerAttention.angles`; layers may be given the same array.
            heads: Query heads and key heads of this rank.
        """

    def experts(
        self,
        layer: int,
        routing: Routing,
        weights: ExpertWeights,
        activation: Activation,
    ) -> Experts:
        """A mixture of experts.

        Args:
            layer: The layer of the experts; each has one mixture at most.
            routing: How tokens are sent to them.
            weights: The weights of the experts.
            activation: The activation of the gates.
        """

    def attention(self, info: ModelInfo, layers: Mapping[int, LayerAttention]) -> Attention:
        """Attention of this rank's heads, with an empty cache; ``layers`` are those of the model
        that attend, by their number.

        Raises:
            ModelLoadError: Heads of this shape are not supported.
        """

    def states(self, info: ModelInfo) -> States:
        """The states of this rank's share of the layers that have one, in a pool of their own.

        Raises:
            ModelLoadError: The device has no parts for them.
        """

    def latents(self, info: ModelInfo) -> Latents:
        """The latents of the layers that keep some, which every rank has as a whole.

        Raises:
            ModelLoadError: The device has no parts for them.
        """

    def gated_norm(
        self,
        weight: NDArray[Any],
        epsilon: float,
        group: int,
        *,
        gate_first: bool,
        function: GateFunction = "silu",
    ) -> GatedNorm:
        """A root mean square norm of each ``group`` neighbours of a row, with a gate.

        Args:
            weight: [width] of this rank's share of a row.
            epsilon: Added to the mean of the squares.
            group: Numbers that are normalized as one.
            gate_first: Gates multiply what is normalized; else what comes of it.
            function: What is computed of gates first.
        """

    def gather(self, source: Buffer, index: Any, out: Buffer, rows: int, first: int = 0) -> None:
        """``out[i] = source[index[first + i]]`` for i below ``rows``; ``index`` is a step's."""

    def gated(self, activation: Activation, gate_up: Buffer, out: Buffer, rows: int) -> None:
        """activation(gate) * up: [rows, 2 * width] -> ``out`` [rows, width], gates first."""

    def activate(self, activation: Activation, x: Buffer, out: Buffer, rows: int) -> None:
        """activation(x): [rows, width] -> ``out`` of the same shape."""

    def scale(self, x: Buffer, factor: float, rows: int) -> None:
        """Multiply the first rows in place."""

    def soft_cap(self, x: Buffer, cap: float, rows: int) -> None:
        """Cap * tanh(x / cap) of the first rows, in place."""

    def multiply(self, x: Buffer, by: Buffer, column: int, rows: int) -> None:
        """Multiply the first rows of ``x`` [rows, width] by the columns of ``by`` from ``column``
        on, in place.
        """

    def gate(self, x: Buffer, gates: Buffer, rows: int) -> None:
        """Multiply by sigmoids, in place: the first rows of ``x`` [rows, width] by ``gates``
        [rows, n], each of which is for width / n neighbours.
        """


def logits_rows(parts: Parts, info: ModelInfo) -> int:
    """Rows of logits that one call computes."""
    row = info.vocab_size * ITEM_BYTES[info.dtype]
    rows = min(parts.max_sampled, parts.logits_bytes // row)
    # Whole sixteens, so that what follows a call's rows lies as well in memory as they do.
    return max(1, rows // 16 * 16 if 16 <= rows < parts.max_sampled else rows)


def check_heads(info: ModelInfo, multiple: int) -> None:
    """Check that attention can do the heads of ``info``.

    Raises:
        ModelLoadError: It cannot; says what must hold.
    """
    for layer in info.attention_layers.values():
        if layer.head_dim % multiple or info.num_heads % layer.kv_heads:
            raise ModelLoadError(
                f"heads of {layer.head_dim} elements, {info.num_heads} over {layer.kv_heads}, are "
                f"not supported: head_dim must be a multiple of {multiple} and the heads divisible"
            )
