"""The list of models."""

import msgspec


class Model(msgspec.Struct, gc=False):
    """A model that is served."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "pyengine"


class ModelList(msgspec.Struct, gc=False):
    """``GET /v1/models``."""

    data: list[Model]
    object: str = "list"
