"""Names of one of several matrices, or vectors, that a file has in one tensor: those of experts;
of a matrix that a file has by inputs; and of one that is read as a vector.

::

    experts.gate_up_proj[3]        the fourth of a tensor [experts, out, in]
    experts.gate_up_proj[3].T      the same, where the tensor is [experts, in, out]
    experts.gate_up_proj_bias[3]   the fourth of a tensor [experts, out]
    c_attn.weight.T                a tensor [in, out]
    conv1d.weight[:]               a tensor [channels, 1, kernel], its numbers in their order
"""

import re
from typing import NamedTuple

_NAME = re.compile(r"(?P<tensor>.*?)(?:\[(?P<index>\d+|:)\])?(?P<transposed>\.T)?")


class Place(NamedTuple):
    """The place of a matrix or a vector.

    Attributes:
        tensor: The tensor's name in the file.
        number: Which one of the tensor's it is; None: it is the whole tensor.
        transposed: The tensor has inputs by outputs.
        flat: Its numbers are meant, whatever its shape.
    """

    tensor: str
    number: int | None
    transposed: bool
    flat: bool = False


def place(name: str) -> Place:
    """The place of the tensor called ``name``."""
    found = _NAME.fullmatch(name)
    assert found is not None
    index, transposed = found["index"], found["transposed"] is not None
    number = None if index in (None, ":") else int(index)
    return Place(found["tensor"], number, transposed=transposed, flat=index == ":")
