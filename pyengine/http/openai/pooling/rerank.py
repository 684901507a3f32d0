"""``POST /v1/rerank``, also as ``/v2/rerank``, and ``/v1/score``."""

from typing import TYPE_CHECKING

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.http.openai.pooling.embeddings import answered, check_inputs
from pyengine.http.openai.pooling.relevance import scores
from pyengine.http.openai.schema.rerank import (
    DocumentObject,
    RerankRequest,
    RerankResponse,
    RerankResult,
    ScoreObject,
    ScoreRequest,
    ScoreResponse,
)

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_rerank = msgspec.json.Decoder(RerankRequest)
_score = msgspec.json.Decoder(ScoreRequest)


async def rerank(exchange: "Exchange") -> None:
    """Order documents by how well they answer a query."""
    request = await exchange.decode(_rerank)
    exchange.require_model(request.model)
    texts = [each if isinstance(each, str) else each.text for each in request.documents]
    check_inputs("documents", len(texts))
    if request.top_n is not None and request.top_n < 0:
        raise InvalidRequestError("'top_n' must be at least 0; 0 is all.", param="top_n")
    pairs = [(request.query, text) for text in texts]
    options = request.scheduled(tenant=request.user)
    found, usages = await scores(exchange, pairs, request.instruction, options)
    results = [RerankResult(index, score) for index, score in enumerate(found)]
    results.sort(key=lambda result: -result.relevance_score)
    results = results[: request.top_n or None]
    if request.return_documents is not False:
        for result in results:
            result.document = DocumentObject(texts[result.index])
    exchange.answer(RerankResponse(results=results, **answered(exchange, request.model, usages)))


async def score(exchange: "Exchange") -> None:
    """Score pairs of texts."""
    request = await exchange.decode(_score)
    exchange.require_model(request.model)
    pairs = paired(request.text_1, request.text_2)
    options = request.scheduled(tenant=request.user)
    found, usages = await scores(exchange, pairs, request.instruction, options)
    data = [ScoreObject(index, score) for index, score in enumerate(found)]
    exchange.answer(ScoreResponse(data=data, **answered(exchange, request.model, usages)))


def paired(one: str | list[str], other: str | list[str]) -> list[tuple[str, str]]:
    """The pairs of two texts or lists; one text goes with each of the other side.

    Raises:
        InvalidRequestError: The lists have different lengths, or are too long or empty.
    """
    first = [one] if isinstance(one, str) else one
    second = [other] if isinstance(other, str) else other
    check_inputs("text_1", len(first))
    check_inputs("text_2", len(second))
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise InvalidRequestError(
            f"'text_1' must hold one text, or as many as 'text_2': {len(first)} are not "
            f"{len(second)}.",
            param="text_1",
        )
    return list(zip(first, second, strict=True))
