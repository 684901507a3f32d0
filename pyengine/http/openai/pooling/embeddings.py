"""``POST /v1/embeddings``."""

import asyncio
import base64
import importlib
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.completion import Usage
from pyengine.errors import InvalidRequestError
from pyengine.http.errors import FieldNames
from pyengine.http.openai.completions.text import split_prompts
from pyengine.http.openai.schema.common import last_tokens
from pyengine.http.openai.schema.embeddings import (
    EmbeddingObject,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
    PooledRequest,
)
from pyengine.http.operations.tracing import Asked
from pyengine.request.embedding import Embedding, VectorForm
from pyengine.request.generation import Generation
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams
from pyengine.telemetry.timing import server_timing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyengine.http.exchange import Exchange

# OpenAI's limit.
MAX_INPUTS = 2048
NOT_TRAINED = (
    "the model's folder has no modules.json: it was not trained for embeddings, and these are its "
    "last token's hidden states."
)

_decoder = msgspec.json.Decoder(EmbeddingRequest)
_PARAMS = SamplingParams()


async def create(exchange: "Exchange") -> None:
    """The vectors of texts."""
    request = await exchange.decode(_decoder)
    exchange.names = FieldNames({"prompt": "input"})
    exchange.require_model(request.model)
    form = VectorForm(request.dimensions, request.normalize)
    token_ids = await prompts_of(exchange, request)
    options = request.scheduled(tenant=request.user)
    embeddings = await embedded(exchange, token_ids, form, options)
    written = _base64 if request.encoding_format == "base64" else _numbers
    data = [EmbeddingObject(at, written(each.vector)) for at, each in enumerate(embeddings)]
    told = answered(exchange, request.model, [each.usage for each in embeddings])
    timing = server_timing([outcome.timing for outcome in exchange.outcomes])
    exchange.answer(
        EmbeddingResponse(data=data, model=told["model"], usage=told["usage"]),
        ("server-timing", timing),
    )


async def prompts_of(exchange: "Exchange", request: PooledRequest) -> list[list[int]]:
    """The token ids of a request's inputs.

    Raises:
        InvalidRequestError: Naming the field at fault.
    """
    engine, inputs = exchange.service.engine, split_prompts(request.input, "input")
    check_inputs("input", len(inputs))
    special, most = request.add_special_tokens is not False, request.truncate_prompt_tokens
    # A text that is cut may be longer than the context.
    encode = engine.encode if most is None else engine.tokenizer.encode_async
    token_ids = [
        await encode(text, add_special_tokens=special) if isinstance(text, str) else text
        for text in inputs
    ]
    return [last_tokens(ids, most, engine.max_context) for ids in token_ids]


async def embedded(
    exchange: "Exchange",
    prompts: Sequence[list[int]],
    form: VectorForm,
    options: RequestOptions,
) -> list[Embedding]:
    """The vectors of prompts, for an exchange that has decoded its request.

    Raises:
        InvalidRequestError: The model gives no vectors, or not such ones.
        PyengineError: The engine refused a prompt.
    """
    spec = exchange.service.engine.vectors
    form.check(spec)
    if not spec.declared:
        exchange.warn(NOT_TRAINED)
    generations = await pooled(exchange, prompts, options, "embeddings", "embd-")
    return [await form.embedding(generation, spec) for generation in generations]


async def pooled(
    exchange: "Exchange",
    prompts: Sequence[list[int]],
    options: RequestOptions,
    operation: str,
    prefix: str,
) -> list[Generation]:
    """Generations whose states are pooled; ``prefix`` begins the answer's id."""
    if "numpy" not in sys.modules:  # its import takes too long for a loop that serves
        await asyncio.to_thread(importlib.import_module, "numpy")
    asked = Asked(operation, exchange.service.new_id(prefix), _PARAMS, False)
    options = replace(options, pooling=exchange.service.engine.vectors.pooling)
    return exchange.generate(((ids, _PARAMS) for ids in prompts), options, asked)


def answered(exchange: "Exchange", model: str | None, usages: Iterable[Usage]) -> dict[str, Any]:
    """The fields of a ScoredResponse but for its data."""
    tokens = sum(usage.prompt_tokens for usage in usages)
    return {
        "id": exchange.answer_id or "",
        "created": int(time.time()),
        "model": model or exchange.service.engine.model_name,
        "usage": EmbeddingUsage(tokens, tokens),
    }


def check_inputs(param: str, count: int) -> None:
    """Refuse a request with too many inputs, or none.

    Raises:
        InvalidRequestError: Naming ``param``.
    """
    if not 1 <= count <= MAX_INPUTS:
        raise InvalidRequestError(
            f"'{param}' must hold 1 to {MAX_INPUTS} inputs, not {count}.", param=param
        )


def _numbers(vector: "NDArray[np.float32]") -> list[float]:
    numbers: list[float] = vector.tolist()
    return numbers


def _base64(vector: "NDArray[np.float32]") -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
