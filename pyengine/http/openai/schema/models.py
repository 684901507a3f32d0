"""The list of models."""

import msgspec


class Model(msgspec.Struct, gc=False):
    """A model that is served.

    Attributes:
        max_model_len: The longest prompt and answer together, in tokens.
        default_sampling_params: Of requests that leave them out, where the model has its own.
    """

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "pyengine"
    default_sampling_params: dict[str, float] | msgspec.UnsetType = msgspec.UNSET


class ModelList(msgspec.Struct, gc=False):
    """``GET /v1/models``."""

    data: list[Model]
    object: str = "list"
