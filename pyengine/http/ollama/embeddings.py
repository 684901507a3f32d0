"""``POST /api/embed`` and ``/api/embeddings``: Ollama's vectors."""

import time
from typing import TYPE_CHECKING

import msgspec

from pyengine.http.errors import FieldNames
from pyengine.http.ollama.endpoints import known_name
from pyengine.http.ollama.schema import (
    OllamaEmbedAnswer,
    OllamaEmbeddingsAnswer,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
)
from pyengine.http.openai.pooling.embeddings import check_inputs, embedded
from pyengine.request.embedding import Embedding, VectorForm
from pyengine.request.options import RequestOptions

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_embed = msgspec.json.Decoder(OllamaEmbedRequest)
_embeddings = msgspec.json.Decoder(OllamaEmbeddingsRequest)


async def embed(exchange: "Exchange") -> None:
    """The vectors of one text or several, of length 1."""
    request = await exchange.decode(_embed)
    exchange.names = FieldNames({"prompt": "input"})
    exchange.require_model(known_name(exchange, request.model))
    texts = [request.input] if isinstance(request.input, str) else request.input
    check_inputs("input", len(texts))
    form = VectorForm(request.dimensions, normalize=True)
    made = await _embedded(exchange, texts, form, truncate=request.truncate is not False)
    answer = OllamaEmbedAnswer(
        model=exchange.service.engine.model_name,
        embeddings=[each.vector.tolist() for each in made],
        total_duration=time.monotonic_ns() - exchange.begun_ns,
        load_duration=0,
        prompt_eval_count=sum(each.usage.prompt_tokens for each in made),
        warnings=list(exchange.warnings) or None,
    )
    exchange.answer(answer)


async def embeddings(exchange: "Exchange") -> None:
    """The vector of one text, as the model gives it."""
    request = await exchange.decode(_embeddings)
    exchange.require_model(known_name(exchange, request.model))
    form = VectorForm(normalize=False)
    (made,) = await _embedded(exchange, [request.prompt], form, truncate=True)
    exchange.answer(OllamaEmbeddingsAnswer(made.vector.tolist()))


async def _embedded(
    exchange: "Exchange", texts: list[str], form: VectorForm, *, truncate: bool
) -> list[Embedding]:
    """The vectors of ``texts``; those that are too long are cut, if they may be."""
    engine = exchange.service.engine
    token_ids = [await engine.tokenizer.encode_async(text) for text in texts]
    if truncate:
        token_ids = [ids[: engine.max_context] for ids in token_ids]
    return await embedded(exchange, token_ids, form, RequestOptions())
