"""Vectors and labels of prompts: what becomes of the states that the engine pools."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyengine.completion import Usage
from pyengine.errors import InvalidRequestError
from pyengine.model.vectors import ScoreHead, VectorSpec
from pyengine.request.generation import Generation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vector of a prompt.

    Attributes:
        vector: float32 [dimensions].
        usage: Its token counts.
    """

    vector: "NDArray[np.float32]"
    usage: Usage


@dataclass(frozen=True)
class VectorForm:
    """The form in which vectors are wanted.

    Attributes:
        dimensions: How many of the first numbers of a vector to keep; None is all. Models
            trained with Matryoshka representation learning keep most of a text's meaning there.
        normalize: Whether vectors have length 1, once they are cut; None is as the model has it.
    """

    dimensions: int | None = None
    normalize: bool | None = None

    def check(self, spec: VectorSpec) -> None:
        """Refuse what the model cannot do.

        Raises:
            InvalidRequestError: Names the parameter, or says why there are no vectors at all.
        """
        if spec.refusal is not None:
            raise InvalidRequestError(f"this model gives no embeddings: {spec.refusal}")
        if self.dimensions is not None and self.dimensions < 1:
            raise InvalidRequestError(
                f"'dimensions' must be at least 1, not {self.dimensions}", param="dimensions"
            )

    async def embedding(self, generation: Generation, spec: VectorSpec) -> Embedding:
        """The embedding that a generation ends with; raises what :meth:`of` does."""
        usage = (await generation).usage
        return Embedding(self.of(generation.vector, spec), usage)

    def of(self, states: "NDArray[np.float32]", spec: VectorSpec) -> "NDArray[np.float32]":
        """The vector made of pooled states, float32 [hidden_size].

        Raises:
            InvalidRequestError: It has fewer numbers than are wanted.
        """
        import numpy as np

        if self.dimensions is not None and self.dimensions > len(states):
            raise InvalidRequestError(
                f"'dimensions' may be {len(states)} at most, not {self.dimensions}",
                param="dimensions",
            )
        vector = states[: self.dimensions]
        if spec.normalize if self.normalize is None else self.normalize:
            length = np.float32(max(float(np.linalg.norm(vector)), 1e-12))
            vector = vector / length
        return vector


def similarity(one: "Sequence[float] | NDArray[np.float32]", other: "NDArray[np.float32]") -> float:
    """The cosine of two vectors."""
    import numpy as np

    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(np.dot(one, other)) / max(lengths, 1e-12)


@dataclass(frozen=True, slots=True)
class Classification:
    """What a classifier says of a prompt.

    Attributes:
        label: The most likely label.
        logits: The scores of all labels, float32 [labels]; a reward model's is its reward.
        probabilities: float32 [labels]: of one label, or of labels that may be true together, each
            by itself, else with the sum 1.
        usage: Its token counts.
    """

    label: str
    logits: "NDArray[np.float32]"
    probabilities: "NDArray[np.float32]"
    usage: Usage


def head_of(spec: VectorSpec) -> ScoreHead:
    """The head of the model.

    Raises:
        InvalidRequestError: It has none.
    """
    if spec.head is None:
        raise InvalidRequestError(
            "this model classifies nothing: its architecture is no ...ForSequenceClassification"
        )
    return spec.head


async def classified(generation: Generation, head: ScoreHead) -> Classification:
    """The classification that a generation ends with, whose states are pooled."""
    usage = (await generation).usage
    logits = head.logits(generation.vector)
    found = head.probabilities(logits)
    return Classification(head.labels[int(logits.argmax())], logits, found, usage)
