"""Names of one of several matrices, or vectors, that a file has in one tensor: those of experts;
and of a matrix that a file has by inputs.

::

    experts.gate_up_proj[3]        the fourth of a tensor [experts, out, in]
    experts.gate_up_proj[3].T      the same, where the tensor is [experts, in, out]
    experts.gate_up_proj_bias[3]   the fourth of a tensor [experts, out]
    c_attn.weight.T                a tensor [in, out]
"""

import re
from typing import NamedTuple

_NAME = re.compile(r"(?P<tensor>.*?)(?:\[(?P<index>\d+)\])?(?P<transposed>\.T)?")


class Place(NamedTuple):
    """The place of a matrix or a vector.

    Attributes:
        tensor: The tensor's name in the file.
        number: Which one of the tensor's it is; None: it is the whole tensor.
        transposed: The tensor has inputs by outputs.
    """

    tensor: str
    number: int | None
    transposed: bool


def place(name: str) -> Place:
    """The place of the tensor called ``name``."""
    found = _NAME.fullmatch(name)
    assert found is not None
    number = None if found["index"] is None else int(found["index"])
    return Place(found["tensor"], number, transposed=found["transposed"] is not None)
