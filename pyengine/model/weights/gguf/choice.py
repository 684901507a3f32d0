"""Which GGUF file of a repository a name asks for, by its own or by the type of its weights."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from pyengine.errors import ModelLoadError
from pyengine.model.weights.gguf.names import PART, SUFFIX

ENCODER = "mmproj"
"""What files of encoders of images have in their names."""


def chosen_files(repository: str, names: Sequence[str], wanted: str) -> list[str]:
    """The file that ``wanted`` asks for, or the parts of one model, in order.

    Args:
        repository: For errors.
        names: The names of its files.
        wanted: A file's name, or a type of weights such as ``Q4_K_M``, in letters of any case.

    Raises:
        ModelLoadError: There is none, or there are several models; names some.
    """
    files = sorted(each for each in names if each.endswith(SUFFIX) and ENCODER not in each)
    ours = [each for each in files if each == wanted or _is_of_type(each, wanted)]
    models = sorted({_model(each) for each in ours})
    if len(models) == 1:
        return ours
    there = "several files" if models else "no GGUF file"
    some = ", ".join((models or files)[:8]) or "none"
    raise ModelLoadError(
        f"{repository} has {there} of {wanted!r}; there are: {some}", param="model"
    )


def _model(name: str) -> str:
    """What the names of a model's parts have in common."""
    part = PART.fullmatch(name)
    return name if part is None else part[1]


def _is_of_type(name: str, wanted: str) -> bool:
    stem = PurePosixPath(_model(name)).name.removesuffix(SUFFIX)
    return re.fullmatch(rf"(?:.*[-._])?{re.escape(wanted)}", stem, re.IGNORECASE) is not None
