"""Quantized weights on a device, as products take them: whole, and tile by tile in Triton.

A tile of weights becomes the numbers that it means in registers, computed in float32 and rounded to
the rows' type once: those that a dense layer of the same file would hold. Numbers lie as files have
them, so that a rank's share is a cut of the file's.

::

    values    4 bits   integers, or floats e2m1 (MXFP4); an even input in the low half of a byte
              8 bits   integers, or floats e4m3
    scales    floats, or powers of two alone (e8m0), for each group of inputs of an output
"""

from dataclasses import dataclass

import torch

from pyengine.kernels.language import tl, triton

BLOCKS = {4: 128, 8: 64}
"""Inputs that a program multiplies at a time, by bits: as many bytes of weights, and what the tiles
of many rows have room for where a program has 99 KiB of shared memory.
"""

_GROUPS = (16, 32, 64)
_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of e2m1 without its sign


@dataclass(frozen=True)
class PackedTensor:
    """The weights of a layer, or of several: what its integers mean says
    :class:`pyengine.model.weights.matrix.Packed`; floats are multiplied by their scales.

    Attributes:
        values: [..., outputs, inputs]: float8_e4m3fn where floats have 8 bits, int8 where integers
            of 8 bits are symmetric, else uint8; of 4 bits uint8 [..., outputs, inputs / 2].
        scales: float32, bfloat16 or float16 [..., groups, outputs]; or uint8, exponents of two
            moved up by 127, of which 255 is NaN.
        zeros: uint8 [..., groups, outputs], or None.
        minimums: float32 [..., groups, outputs], or None.
        bits: 4 or 8.
        group: Inputs of a group: 16, 32, 64, a multiple of 128, or all of them. It divides the
            inputs, but for floats of 8 bits, whose last group may be cut short.
        floats: Values are floats.
    """

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    minimums: torch.Tensor | None
    bits: int
    group: int
    floats: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Layers where there are several, outputs and inputs."""
        *before, width = self.values.shape
        return *before, width * 8 // self.bits

    def layer(self, number: int) -> "PackedTensor":
        """One of several layers, in the same memory."""
        arrays = (self.values, self.scales, self.zeros, self.minimums)
        of_layer = [None if each is None else each[number] for each in arrays]
        values, scales, zeros, minimums = of_layer
        assert values is not None
        assert scales is not None
        return PackedTensor(values, scales, zeros, minimums, self.bits, self.group, self.floats)

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """The numbers that are meant, [..., outputs, inputs], rounded to ``dtype``."""
        numbers = self.values
        if self.bits == 4:
            numbers = torch.stack((numbers & 15, numbers >> 4), dim=-1).flatten(-2)
        if self.floats and self.bits == 4:
            signed = torch.tensor([*_NUMBERS, *(-number for number in _NUMBERS)])
            weights = signed.to(numbers.device)[numbers.long()]
        else:
            weights = numbers.float()
        if self.zeros is not None:
            weights -= self._spread(self.zeros.float())
        elif self.bits == 4 and self.minimums is None and not self.floats:
            weights -= 8
        scales = self.scales
        weights *= self._spread(powers(scales) if scales.dtype == torch.uint8 else scales.float())
        if self.minimums is not None:
            weights -= self._spread(self.minimums)
        return weights.to(dtype)

    def _spread(self, by_group: torch.Tensor) -> torch.Tensor:
        """[..., groups, outputs] -> [..., outputs, inputs]."""
        return by_group.mT.repeat_interleave(self.group, dim=-1)[..., : self.shape[-1]]

    def check(self) -> None:
        """Raise what products say of weights that they do not take.

        Raises:
            ValueError: Types or shapes do not fit each other.
        """
        *layers, width, inputs = self.shape
        cut_short = self.floats and self.bits == 8
        if (inputs % self.group and not cut_short) or not takes_groups(self.group, inputs):
            raise ValueError(f"groups of {self.group} of {inputs} inputs have no product")
        groups = (*layers, -(-inputs // self.group), width)
        for numbers in (self.scales, self.zeros, self.minimums):
            if numbers is not None and (numbers.shape != groups or not numbers.is_contiguous()):
                raise ValueError(f"{[*numbers.shape]} is not {[*groups]}, in one piece")
        plain = self.zeros is None and self.minimums is None
        if self.floats and not plain:
            raise ValueError("floats have neither zeros nor minimums")
        wide = torch.float8_e4m3fn if self.floats else torch.int8 if plain else torch.uint8
        if self.values.dtype != (wide if self.bits == 8 else torch.uint8):
            raise ValueError(f"values of {self.bits} bits must not be {self.values.dtype}")
        if not self.values.is_contiguous():
            raise ValueError("values must be in one piece")


def takes_groups(group: int, inputs: int) -> bool:
    """Whether there is a product for groups of ``group`` inputs."""
    return group in (*_GROUPS, inputs) or group % max(BLOCKS.values()) == 0


def powers(exponents: torch.Tensor) -> torch.Tensor:
    """The powers of two that e8m0 means, float32."""
    halves = ((exponents == 0) | (exponents == 255)).int() << 22  # see numbers_of
    return (exponents.int() << 23 | halves).view(torch.float32)


@triton.jit
def weights_of(
    weight_ptr, scale_ptr, zero_ptr, minimum_ptr, at, output, INPUTS: tl.constexpr,
    WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, FLOATS: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_MINIMUMS: tl.constexpr, OUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weights of some outputs for the inputs from ``at`` on, float32 [OUTS, BLOCK].

    ``weight_ptr`` points to the values of each output, [OUTS, 1]; the others to those of a layer.
    """
    A_BYTE: tl.constexpr = 8 // BITS
    place = at // A_BYTE + tl.arange(0, BLOCK // A_BYTE)[None, :]
    inside = (output < WIDTH) & (place < INPUTS // A_BYTE)
    packed = tl.load(weight_ptr + place, mask=inside, other=0.0)
    if BITS == 4:
        packed = tl.interleave(packed & 15, packed >> 4)
    if BITS == 4 and FLOATS:
        weight = small_floats(packed)
    else:
        weight = packed.to(tl.float32)
    if HAS_ZEROS:
        weight -= of_groups(zero_ptr, at, output, INPUTS, WIDTH, GROUP, OUTS, BLOCK)
    elif BITS == 4 and not HAS_MINIMUMS and not FLOATS:
        weight -= 8.0
    weight *= of_groups(
        scale_ptr, at, output, INPUTS, WIDTH, GROUP, OUTS, BLOCK,
        POWERS=scale_ptr.dtype.element_ty == tl.uint8,
    )  # fmt: skip
    if HAS_MINIMUMS:
        weight -= of_groups(minimum_ptr, at, output, INPUTS, WIDTH, GROUP, OUTS, BLOCK)
    return weight


@triton.jit
def of_groups(
    ptr, at, output, INPUTS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    OUTS: tl.constexpr, BLOCK: tl.constexpr, POWERS: tl.constexpr = False,
):  # fmt: skip
    """What the inputs of a block have of their groups, float32: [OUTS, BLOCK], or [OUTS, 1] where
    the block is of one group.
    """
    if GROUP < BLOCK and GROUP < INPUTS:
        group = at // GROUP + tl.arange(0, BLOCK // GROUP)[None, :]
        inside = (output < WIDTH) & (group < (INPUTS + GROUP - 1) // GROUP)
        by_group = numbers_of(tl.load(ptr + group * WIDTH + output, mask=inside, other=0), POWERS)
        spread = tl.broadcast_to(by_group[:, :, None], [OUTS, BLOCK // GROUP, GROUP])
        numbers = tl.reshape(spread, [OUTS, BLOCK])
    else:
        loaded = tl.load(ptr + at // GROUP * WIDTH + output, mask=output < WIDTH, other=0)
        numbers = numbers_of(loaded, POWERS)
    return numbers


@triton.jit
def numbers_of(stored, POWERS: tl.constexpr):
    """Numbers as float32, or the powers of two that e8m0 means."""
    if POWERS:
        exponent = stored.to(tl.uint32)
        # 2^-127 is a subnormal number, and 255 NaN: both are the first bit behind the exponent.
        half = ((exponent == 0) | (exponent == 255)).to(tl.uint32)
        numbers = (exponent << 23 | half << 22).to(tl.float32, bitcast=True)
    else:
        numbers = stored.to(tl.float32)
    return numbers


@triton.jit
def small_floats(code):
    """What floats e2m1 mean: two bits of an exponent and one of a mantissa are those of a float16,
    subnormal ones too, whose exponent is higher by 14.
    """
    bits = code.to(tl.uint16)
    half = ((bits & 7) << 9 | (bits & 8) << 12).to(tl.float16, bitcast=True)
    return half.to(tl.float32) * 16384.0
