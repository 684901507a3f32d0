"""Pooling: the answer is a vector, made of the prompt's last hidden states."""

from dataclasses import dataclass
from typing import ClassVar

from pyengine.logprobs import Spelling
from pyengine.messages import Extension, Submit
from pyengine.model.vectors import Pooling
from pyengine.request.features.feature import AnswerPart, Asked, Feature, Options


class PoolingExtension(Extension):
    """Asks for a vector in place of an answer.

    Attributes:
        pooling: How the vector is made: of the state of the prompt's last token, or of all.
    """

    TAG: ClassVar[str] = "pooling"
    ANSWER_TOKENS: ClassVar[int | None] = 1  # it has a place, and never comes

    pooling: Pooling


class VectorExtra(Extension):
    """Gives the vector back, before the end of the request.

    Attributes:
        states: float32 little-endian.
    """

    TAG: ClassVar[str] = "vector"

    states: bytes


@dataclass(frozen=True, kw_only=True)
class PoolingOptions(Options):
    """The option for vectors.

    Attributes:
        pooling: The answer is a vector, made like this of the prompt's last hidden states, and no
            text; see :attr:`pyengine.request.generation.Generation.vector`.
    """

    pooling: Pooling | None = None


def _ask(asked: Asked, options: PoolingOptions) -> PoolingExtension | None:
    return None if options.pooling is None else PoolingExtension(options.pooling)


class Vector(AnswerPart):
    """The vector, once it has come.

    Attributes:
        states: float32 little-endian; empty before.
    """

    def __init__(self, submit: Submit, extension: PoolingExtension, spelling: Spelling) -> None:
        self.states = b""

    def receive(self, extra: VectorExtra) -> None:
        """Keep the vector that came."""
        self.states = extra.states


FEATURE = Feature(PoolingExtension, _ask, Vector, VectorExtra)
