"""The interface of mixers, and what they read of weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pyengine.model.architectures.blocks import Block
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.latent_parts import Latents
from pyengine.model.architectures.parts import Linear, Parts
from pyengine.model.architectures.state_parts import States
from pyengine.model.cache_layers import CacheLayer
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.matrix import Matrix
from pyengine.model.weights.sharding import Weights


@dataclass(frozen=True)
class Workshop:
    """What the blocks of mixers are made with.

    Attributes:
        parts: The parts of the device.
        weights: The weights of the parts' rank.
        info: The description of the model.
        buffer: The buffer [tokens, width] of a use, the same for all layers.
        angles: The rotary table [context, elements] of a layer, by its number and these elements.
    """

    parts: Parts
    weights: Weights
    info: ModelInfo
    buffer: Callable[[str, int], Buffer]
    angles: Callable[[int, int], NDArray[np.float32]]

    @property
    def hidden(self) -> int:
        """Width of hidden states."""
        return self.info.hidden_size

    @cached_property
    def states(self) -> States:
        """The states of all layers that have one."""
        return self.parts.states(self.info)

    @cached_property
    def latents(self) -> Latents:
        """The latents of all layers that keep some."""
        return self.parts.latents(self.info)

    @property
    def ranks(self) -> int:
        """Ranks that share the model."""
        return self.parts.ranks

    def linears(self, weight: Matrix, widths: Sequence[int]) -> list[Linear]:
        """A linear layer of each of the ``widths``, which follow each other in ``weight``."""
        return [self.parts.linear(each) for each in weight.split([w // self.ranks for w in widths])]

    def filters(
        self, names: Sequence[str], channels: Sequence[int], kernel: int
    ) -> NDArray[np.float32]:
        """A rank's filters [channels, kernel] of a depthwise convolution.

        Args:
            names: Of its weight, [sum(channels), 1, kernel] in files; or of one for each of the
                ``channels``.
            channels: Over all ranks, in pieces of which each rank has a share.
            kernel: Inputs of an output.
        """
        weights, sizes = self.weights, [count * kernel for count in channels]
        if len(names) == 1:
            flat = weights.fused_vector(f"{names[0]}.weight[:]", sizes)
        else:
            by_name = (f"{name}.weight[:]" for name in names)
            flat = weights.vectors(dict(zip(by_name, sizes, strict=True)))
        return flat.astype(np.float32).reshape(-1, kernel)

    def numbers(self, name: str, count: int) -> NDArray[np.float32]:
        """A rank's share of the vector called ``name``, of ``count`` numbers over all ranks."""
        return self.weights.vectors({name: count}).astype(np.float32)


class Mixer(Protocol):
    """What a family's layers have in the place of attention to keys and values."""

    @property
    def keeps(self) -> CacheLayer:
        """What a layer keeps of a sequence, over all ranks."""

    @property
    def shared(self) -> Mapping[str, int]:
        """What ranks divide among them, by its name in errors."""

    def block(self, workshop: Workshop, layer: int, start: str) -> Block:
        """The block of a layer, whose names begin with ``start``; layers share its buffers.

        Raises:
            ModelLoadError: Weights are missing.
        """
