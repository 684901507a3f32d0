"""The list of models."""

import msgspec


class Model(msgspec.Struct, gc=False):
    """A model that is served.

    Attributes:
        max_model_len: The longest prompt and answer together, in tokens.
        parent: The model that an adapter changes.
        root: The folder that an adapter was loaded from.
        default_sampling_params: What requests that leave them out get, where the model has its own.
    """

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "pyengine"
    parent: str | msgspec.UnsetType = msgspec.UNSET
    root: str | msgspec.UnsetType = msgspec.UNSET
    default_sampling_params: dict[str, float] | msgspec.UnsetType = msgspec.UNSET


class ModelList(msgspec.Struct, gc=False):
    """``GET /v1/models``."""

    data: list[Model]
    object: str = "list"
