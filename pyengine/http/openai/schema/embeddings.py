"""Vectors of texts: OpenAI's requests and answers."""

from typing import Literal

import msgspec

from pyengine.http.scheduled import ScheduledRequest


class PooledRequest(ScheduledRequest, kw_only=True, forbid_unknown_fields=True):
    """Texts whose states are pooled."""

    # A string, strings, token ids, or lists of token ids; see completions.split_prompts().
    input: str | list[str | int | list[int]]
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    user: str | None = None


class EmbeddingRequest(PooledRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/embeddings``: of a string, strings, token ids, or lists of token ids.

    Attributes:
        encoding_format: Vectors as numbers, or as base64 of float32.
        dimensions: Numbers to keep of each vector, from the first on; it is normalized again.
        normalize: Whether vectors have length 1; without it, as the model's folder has it.
    """

    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None


class EmbeddingObject(msgspec.Struct, gc=False):
    """A vector: numbers, or in base64 the bytes of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct, gc=False):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class ClassifyRequest(PooledRequest, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/classify``.

    Attributes:
        use_activation: Whether scores are probabilities, as they are unless this is false.
    """

    use_activation: bool | None = None


class ClassObject(msgspec.Struct, gc=False):
    """The most likely label of an input, and the probabilities of all."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ScoredResponse(msgspec.Struct, gc=False, kw_only=True):
    """Numbers for the inputs, in their order."""

    id: str
    object: str = "list"
    created: int
    model: str
    usage: EmbeddingUsage
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class EmbeddingResponse(msgspec.Struct, gc=False, kw_only=True):
    """The vectors, in the order of the inputs."""

    object: str = "list"
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


class ClassifyResponse(ScoredResponse, gc=False, kw_only=True):
    """What a classifier says of the inputs."""

    data: list[ClassObject]
