"""Opens a model's weights: from its folder, or made up."""

from pyengine.errors import ConfigError
from pyengine.model.architectures import traits_of
from pyengine.model.progress import Progress
from pyengine.model.spec import ModelSpec
from pyengine.model.weights.checkpoint import Checkpoint
from pyengine.model.weights.dummy import DummyWeights
from pyengine.model.weights.folder import weight_file
from pyengine.model.weights.gguf.file import open_gguf
from pyengine.model.weights.gguf.source import GgufWeights
from pyengine.model.weights.quantization.at_load import QuantizedAtLoad
from pyengine.model.weights.quantization.selection import find_scheme
from pyengine.model.weights.sharding import RankWeights, Source


def open_weights(
    spec: ModelSpec, *, rank: int = 0, ranks: int = 1, progress: Progress | None = None
) -> RankWeights:
    """The weights of ``spec``, from its folder or made up.

    Args:
        spec: The model.
        rank: The rank whose share is read.
        ranks: Among how many.
        progress: Called with (bytes loaded, bytes in all), on the caller's thread.

    Raises:
        ModelLoadError: There are none, a file is damaged or missing, or their format is not
            supported.
        ConfigError: A setting does not fit how the weights are quantized.
    """
    return RankWeights(_source(spec), rank, ranks, progress)


def _source(spec: ModelSpec) -> Source:
    if spec.dummy:
        source: Source = DummyWeights(float(spec.config.get("initializer_range") or 0.02))
    else:
        source, is_quantized = _stored(spec)
        _check(spec, is_quantized)
    return QuantizedAtLoad(source, spec.quantization) if spec.quantization else source


def _stored(spec: ModelSpec) -> tuple[Source, bool]:
    """The weights in files, and whether they are quantized."""
    file = weight_file(spec.config)
    if file is not None:
        weights = GgufWeights(open_gguf(file))
        return weights, weights.is_quantized
    scheme = find_scheme(spec.config)
    traits = traits_of(spec.info.architecture, spec.config)
    body = "" if traits is None else body_of(traits.names.embedding)
    return Checkpoint(spec.info.folder, scheme, body), scheme is not None


def body_of(embedding: str) -> str:
    """What the names of all tensors of a body begin with in a whole model."""
    first, dot, _ = embedding.partition(".")
    return first + dot if dot else ""


def _check(spec: ModelSpec, quantized: bool) -> None:
    if quantized and spec.quantization:
        raise ConfigError(
            f"'quantization' is {spec.quantization!r}, but the weights of {spec.info.name} are "
            "quantized already; leave it out",
            param="quantization",
        )
