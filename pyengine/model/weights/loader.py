"""Opens a model's weights: from its folder, or made up."""

from pyengine.model.runner import Progress
from pyengine.model.spec import ModelSpec
from pyengine.model.weights.checkpoint import Checkpoint
from pyengine.model.weights.dummy import DummyWeights
from pyengine.model.weights.sharding import RankWeights, Source


def open_weights(
    spec: ModelSpec, *, rank: int = 0, ranks: int = 1, progress: Progress | None = None
) -> RankWeights:
    """The weights of ``spec``, from its folder or made up.

    Args:
        spec: The model.
        rank: Whose share is read.
        ranks: Among how many.
        progress: Called with (bytes loaded, bytes in all), on the caller's thread.

    Raises:
        ModelLoadError: There are none, or a file is damaged or missing.
    """
    return RankWeights(_source(spec), rank, ranks, progress)


def _source(spec: ModelSpec) -> Source:
    if spec.dummy:
        return DummyWeights(float(spec.config.get("initializer_range") or 0.02))
    return Checkpoint(spec.info.folder)
