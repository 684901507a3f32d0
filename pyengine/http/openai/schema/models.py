"""The list of models."""

import msgspec


class Model(msgspec.Struct, gc=False):
    """A model that is served; ``max_model_len`` is the longest prompt and answer together."""

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "pyengine"


class ModelList(msgspec.Struct, gc=False):
    """``GET /v1/models``."""

    data: list[Model]
    object: str = "list"
