"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

import time
from typing import TYPE_CHECKING

import msgspec

from pyengine.async_engine import AsyncEngine
from pyengine.http.openai.schema.models import Model, ModelList

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

# OpenAI's `created` of a model; here the time at which this process began to serve it.
_CREATED = int(time.time())


async def list_all(exchange: "Exchange") -> None:
    """The models that are served."""
    engine = exchange.service.require_ready()
    models = [_model(engine, name) for name in (*engine.model_names, *engine.adapters)]
    exchange.reply(msgspec.json.encode(ModelList(models)))


async def retrieve(exchange: "Exchange") -> None:
    """One model, by its name; names of hubs have slashes in them."""
    engine = exchange.require_model(exchange.parameter)
    exchange.reply(msgspec.json.encode(_model(engine, exchange.adapter or exchange.parameter)))


def _model(engine: AsyncEngine, name: str) -> Model:
    model = Model(name, _CREATED, engine.max_context)
    if given := engine.generation_config.given:
        model.default_sampling_params = given
    if (adapter := engine.adapters.get(name)) is not None:
        model.parent, model.root = engine.model_name, adapter.folder
    return model
