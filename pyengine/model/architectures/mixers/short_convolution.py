"""The gated short convolution of LFM2 (Liquid AI, "LFM2 Technical Report", 2025)::

x ─ linear ─┬─ B ─┐
            ├─ x ─┴─ * ─ convolution ─┐
            └─ C ─────────────────────┴─ * ─ linear ─►
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyengine.model.architectures.blocks import Block
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.mixers.mixer import Workshop
from pyengine.model.architectures.parts import Linear, Parts, Step
from pyengine.model.architectures.state_parts import Convolution
from pyengine.model.cache_layers import State


@dataclass(frozen=True, kw_only=True)
class ShortConvolution:
    """A mixer: see :class:`pyengine.model.architectures.mixers.mixer.Mixer`.

    Attributes:
        channels: The number of channels of the convolution; as many as hidden states.
        kernel: Its inputs.
        bias: Whether it and the linear layers have biases.
    """

    channels: int
    kernel: int
    bias: bool = False

    @property
    def keeps(self) -> State:
        """See :class:`Mixer`."""
        return State(channels=self.channels, kernel=self.kernel)

    @property
    def shared(self) -> Mapping[str, int]:
        """See :class:`Mixer`."""
        return {"channels of the convolution": self.channels}

    def block(self, workshop: Workshop, layer: int, start: str) -> Block:
        """See :class:`Mixer`."""
        weights, parts, start = workshop.weights, workshop.parts, f"{start}conv."
        hidden, width = self.channels, self.channels // workshop.ranks
        widths = hidden, hidden, hidden
        given = weights.fused(f"{start}in_proj.weight", widths, hidden)
        gates, inputs = given.split([2 * width, width])
        out = weights.inputs(f"{start}out_proj.weight", hidden, hidden)
        biases = filter_bias = out_bias = None
        if self.bias:
            biases = weights.fused_vector(f"{start}in_proj.bias", widths)
            filter_bias = weights.vectors({f"{start}conv.bias": hidden})
            out_bias = weights.vector(f"{start}out_proj.bias", hidden)
        filters = workshop.filters([f"{start}conv"], (hidden,), self.kernel)
        return ShortConvolutionBlock(
            parts,
            parts.linear(gates, None if biases is None else biases[: 2 * width]),
            parts.linear(inputs, None if biases is None else biases[2 * width :]),
            workshop.states.convolution(layer, filters, filter_bias, None),
            parts.linear(out, out_bias, reduce=True),
            width,
            workshop.buffer("B and C", 2 * width),
            workshop.buffer("before the convolution", width),
            workshop.buffer("behind the convolution", width),
        )


@dataclass(frozen=True)
class ShortConvolutionBlock:
    """See the module. Its buffers are shared by all layers."""

    parts: Parts
    to_gates: Linear
    to_inputs: Linear
    convolve: Convolution
    out: Linear
    width: int
    gates: Buffer
    inputs: Buffer
    convolved: Buffer

    def __call__(self, step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
        """[tokens, hidden] -> ``out`` [tokens, hidden]."""
        self.to_gates(x, self.gates, tokens)
        self.to_inputs(x, self.inputs, tokens)
        self.parts.multiply(self.inputs, self.gates, 0, tokens)
        self.convolve(step, self.inputs, self.convolved, tokens)
        self.parts.multiply(self.convolved, self.gates, self.width, tokens)
        self.out(self.convolved, out, tokens)
