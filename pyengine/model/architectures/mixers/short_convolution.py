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
from pyengine.model.architectures.parts import Step
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
        biases = filter_bias = back_bias = None
        if self.bias:
            biases = weights.fused_vector(f"{start}in_proj.bias", widths)
            filter_bias = weights.vectors({f"{start}conv.bias": hidden})
            back_bias = weights.vector(f"{start}out_proj.bias", hidden)
        both, one = given.split([2 * width, width])
        to_gates = parts.linear(both, None if biases is None else biases[: 2 * width])
        to_inputs = parts.linear(one, None if biases is None else biases[2 * width :])
        filters = workshop.filters([f"{start}conv"], (hidden,), self.kernel)
        convolve = workshop.states.convolution(layer, filters, filter_bias, None)
        back = weights.inputs(f"{start}out_proj.weight", hidden, hidden)
        project = parts.linear(back, back_bias, reduce=True)
        gates = workshop.buffer("B and C", 2 * width)
        inputs = workshop.buffer("before the convolution", width)
        convolved = workshop.buffer("behind the convolution", width)

        def mix(step: Step, x: Buffer, out: Buffer, tokens: int) -> None:
            to_gates(x, gates, tokens)
            to_inputs(x, inputs, tokens)
            parts.multiply(inputs, gates, 0, tokens)
            convolve(step, inputs, convolved, tokens)
            parts.multiply(convolved, gates, width, tokens)
            project(convolved, out, tokens)

        return mix
