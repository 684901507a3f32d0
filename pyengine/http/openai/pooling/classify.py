"""``POST /v1/classify``: what a classifier or a reward model says of texts."""

from typing import TYPE_CHECKING

import msgspec

from pyengine.http.openai.pooling.embeddings import answered, pooled, prompts_of
from pyengine.http.openai.schema.embeddings import (
    ClassifyRequest,
    ClassifyResponse,
    ClassObject,
)
from pyengine.request.embedding import Classification, classified, head_of
from pyengine.request.options import RequestOptions

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(ClassifyRequest)


async def classify(exchange: "Exchange") -> None:
    """The labels of texts, by a classifier."""
    request = await exchange.decode(_decoder)
    exchange.require_model(request.model)
    head_of(exchange.service.engine.vectors)
    options, prompts = request.scheduled(tenant=request.user), await prompts_of(exchange, request)
    made = await classifications(exchange, prompts, options)
    raw = request.use_activation is False
    data = [
        ClassObject(
            at, each.label, (each.logits if raw else each.probabilities).tolist(), len(each.logits)
        )
        for at, each in enumerate(made)
    ]
    told = answered(exchange, request.model, [each.usage for each in made])
    exchange.answer(ClassifyResponse(data=data, **told))


async def classifications(
    exchange: "Exchange", prompts: list[list[int]], options: RequestOptions
) -> list[Classification]:
    """What the model, a classifier, says of each prompt."""
    head = head_of(exchange.service.engine.vectors)
    generations = await pooled(exchange, prompts, options, "classify", "classify-")
    return [await classified(generation, head) for generation in generations]
