"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

import time
from typing import TYPE_CHECKING

import msgspec

from pyengine.async_engine import AsyncEngine

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

# OpenAI's `created` of a model; here the time at which this process began to serve it.
_CREATED = int(time.time())


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


async def list_all(exchange: "Exchange") -> None:
    """The models that are served."""
    engine = exchange.service.require_ready()
    models = [_model(engine, name) for name in (*engine.model_names, *engine.adapters)]
    exchange.answer(ModelList(models))


async def retrieve(exchange: "Exchange") -> None:
    """One model, by its name; names of hubs have slashes in them."""
    engine = exchange.require_model(exchange.parameter)
    exchange.answer(_model(engine, exchange.adapter or exchange.parameter))


def _model(engine: AsyncEngine, name: str) -> Model:
    model = Model(name, _CREATED, engine.max_context)
    if given := engine.generation_config.given:
        model.default_sampling_params = given
    if (adapter := engine.adapters.get(name)) is not None:
        model.parent, model.root = engine.model_name, adapter.folder
    return model
