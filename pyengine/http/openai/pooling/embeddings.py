"""``POST /v1/embeddings``."""

import asyncio
import base64
import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.http.errors import FieldNames
from pyengine.http.openai.completions.text import split_prompts
from pyengine.http.openai.schema.common import last_tokens
from pyengine.http.openai.schema.embeddings import (
    EmbeddingObject,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
)
from pyengine.http.operations.tracing import Asked
from pyengine.request.embedding import Embedding, VectorForm
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
_encode = msgspec.json.Encoder().encode
_PARAMS = SamplingParams()


async def create(exchange: "Exchange") -> None:
    """The vectors of texts."""
    request = await exchange.decode(_decoder)
    exchange.names = FieldNames({"prompt": "input"})
    engine = exchange.require_model(request.model)
    form = VectorForm(request.dimensions, request.normalize)
    inputs = split_prompts(request.input, "input")
    check_inputs("input", len(inputs))
    special, most = request.add_special_tokens is not False, request.truncate_prompt_tokens
    # A text that is cut may be longer than the context.
    encode = engine.encode if most is None else engine.tokenizer.encode_async
    token_ids = [
        await encode(text, add_special_tokens=special) if isinstance(text, str) else text
        for text in inputs
    ]
    token_ids = [last_tokens(ids, most, engine.max_context) for ids in token_ids]
    options = request.scheduled(tenant=request.user)
    embeddings = await embedded(exchange, token_ids, form, options)
    tokens = sum(each.usage.prompt_tokens for each in embeddings)
    written = _base64 if request.encoding_format == "base64" else _numbers
    response = EmbeddingResponse(
        data=[
            EmbeddingObject(index, written(each.vector)) for index, each in enumerate(embeddings)
        ],
        model=request.model or engine.model_name,
        usage=EmbeddingUsage(tokens, tokens),
    )
    if exchange.warnings:
        response.warnings = list(exchange.warnings)
    timing = server_timing([outcome.timing for outcome in exchange.outcomes])
    exchange.reply(_encode(response), 200, ("server-timing", timing))


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
    engine = exchange.service.engine
    spec = engine.vectors
    form.check(spec)
    if "numpy" not in sys.modules:  # its import takes too long for a loop that serves
        await asyncio.to_thread(importlib.import_module, "numpy")
    if not spec.declared:
        exchange.warn(NOT_TRAINED)
    asked = Asked("embeddings", exchange.service.new_id("embd-"), _PARAMS, False)
    options = replace(options, pooling=spec.pooling)
    generations = exchange.generate(((ids, _PARAMS) for ids in prompts), options, asked)
    return [await form.embedding(generation, spec) for generation in generations]


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
