"""How well a document answers a query, by what the model is.

A classifier of one label reads both. A model whose folder says how to make vectors gives the
cosine of two. Any other is asked, as
Qwen3-Reranker is: the conversation says what to judge, and the score is the softmax over the logits
of ``yes`` and ``no`` in the place of the answer's first token.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyengine.chat.messages import Message
from pyengine.chat.options import ChatOptions
from pyengine.completion import Usage
from pyengine.decisions.plan import SCORING
from pyengine.errors import InvalidRequestError
from pyengine.http.openai.pooling.classify import classifications
from pyengine.http.openai.pooling.embeddings import embedded
from pyengine.http.operations.tracing import Asked
from pyengine.request.embedding import VectorForm, similarity
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
NOT_TRAINED = (
    "the model's name has no 'rerank' in it: scores are its own yes or no to a reranker's prompt."
)

Pair = tuple[str, str]
Scored = tuple[list[float], list[Usage]]


async def scores(
    exchange: "Exchange", pairs: Sequence[Pair], instruction: str | None, options: RequestOptions
) -> Scored:
    """The score of each pair of a query and a document, and the usage of all that was asked.

    Raises:
        InvalidRequestError: The model can do neither, or does not take an instruction.
        PyengineError: The engine refused a prompt.
    """
    spec = exchange.service.engine.vectors
    if spec.head is not None and instruction is None:
        return await _scored(exchange, pairs, options)
    if spec.head is None and not spec.declared:
        return await _judged(exchange, pairs, instruction or INSTRUCTION, options)
    if instruction is not None:
        raise InvalidRequestError(
            "'instruction' is for rerankers that read one; this model does not.",
            param="instruction",
        )
    return await _compared(exchange, pairs, options)


async def _scored(exchange: "Exchange", pairs: Sequence[Pair], options: RequestOptions) -> Scored:
    """The first label's probabilities, of both texts one behind the other."""
    encode = exchange.service.engine.encode
    prompts = [await encode(query) + await encode(document) for query, document in pairs]
    made = await classifications(exchange, prompts, options)
    if made and len(made[0].logits) != 1:
        raise InvalidRequestError(
            f"this model scores no documents: it tells {len(made[0].logits)} labels apart"
        )
    return [float(each.probabilities[0]) for each in made], [each.usage for each in made]


async def _compared(exchange: "Exchange", pairs: Sequence[Pair], options: RequestOptions) -> Scored:
    """Cosines of vectors; a text that is in several pairs has one."""
    engine = exchange.service.engine
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    token_ids = [await engine.encode(text) for text in texts]
    made = await embedded(exchange, token_ids, VectorForm(), options)
    of = dict(zip(texts, made, strict=True))
    found = [similarity(of[one].vector, of[other].vector) for one, other in pairs]
    return found, [each.usage for each in made]


async def _judged(
    exchange: "Exchange", pairs: Sequence[Pair], instruction: str, options: RequestOptions
) -> Scored:
    engine = exchange.service.engine
    if "rerank" not in engine.model_name.lower():
        exchange.warn(NOT_TRAINED)
    yes, no = _token(exchange, "yes"), _token(exchange, "no")
    chat = ChatOptions(reasoning=False if engine.handler.reasons else None)
    prompts = []
    for query, document in pairs:
        asked = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        messages = [Message("system", SYSTEM), Message("user", asked)]
        _, token_ids = await engine.prepare(messages, SamplingParams(), chat)
        prompts.append(token_ids)
    generations = exchange.generate(
        ((ids, SCORING) for ids in prompts),
        replace(options, following_logprobs=(yes, no)),
        Asked("rerank", exchange.service.new_id("score-"), SCORING, False),
    )
    found, usages = [], []
    for generation in generations:
        made = await generation
        assert made.following_logprobs is not None
        of_yes, of_no = made.following_logprobs
        usages.append(made.usage)
        found.append(1 / (1 + math.exp(min(of_no - of_yes, 700.0))))
    return found, usages


def _token(exchange: "Exchange", word: str) -> int:
    """The id of a word that the model can answer with.

    Raises:
        InvalidRequestError: It is no token of the model.
    """
    ids = exchange.service.engine.tokenizer.encode(word, add_special_tokens=False)
    if len(ids) != 1:
        raise InvalidRequestError(
            f"this model scores no documents: its tokenizer has no token {word!r}, and its folder "
            "has no modules.json that says how to make embeddings"
        )
    return ids[0]
