"""``POST /v1/responses/compact``: a conversation made short.

The user's messages stay as they are; a summary, which the model writes, stands for all else. It
comes as an opaque item, which a later request sends back.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.chat.answer import ChatAnswer
from pyengine.chat.messages import Message
from pyengine.chat.options import ChatOptions
from pyengine.http.openai.responses.input import InputItem, conversation, stored
from pyengine.http.openai.responses.output import usage_object
from pyengine.http.openai.responses.request import all_items, shortened
from pyengine.http.openai.schema.conversations import CompactedResponse, CompactRequest
from pyengine.http.openai.schema.responses import MessageItem, ResponsesRequest
from pyengine.http.operations.tracing import Asked
from pyengine.http.packed_reasoning import packed
from pyengine.request.generation_config import over

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

ASK = (
    "Summarize what was said and done in this conversation so far, for an assistant who goes on "
    "with it and sees only the user's messages and your summary: decisions, results of calls, "
    "facts, names and paths that matter, and what is left to do. Write the summary alone."
)
# The summary's most tokens, and its part of the context.
_MOST_TOKENS, _PART = 2048, 4
_decoder = msgspec.json.Decoder(CompactRequest)


async def compact(exchange: "Exchange") -> None:
    """Make a conversation short: the user's messages, and a summary of all else."""
    request = await exchange.decode(_decoder)
    engine = exchange.require_model(request.model)
    asked = ResponsesRequest(
        input=request.input or [], previous_response_id=request.previous_response_id
    )
    items = [item for part in await all_items(exchange, asked) for item in part]
    messages = conversation(items, request.instructions)
    if messages and messages[-1].role == "user":
        messages[-1] = Message("user", f"{messages[-1].content}\n\n{ASK}")
    else:
        messages.append(Message("user", ASK))
    most = min(_MOST_TOKENS, engine.max_context // _PART)
    params = over(engine.default_sampling_params, {"max_tokens": most})
    options = ChatOptions(reasoning=False if engine.handler.reasons else None)
    spec, token_ids = await shortened(exchange, messages, params, options)
    name = exchange.service.new_id("resp_")
    [generation] = exchange.generate(
        [(token_ids, spec.params)],
        request.scheduled(),
        Asked("chat", name, params, False),
    )
    summary: ChatAnswer = await spec.answer(generation)
    answer = CompactedResponse(
        id=name,
        created_at=int(time.time()),
        output=[*_said(exchange, items), _compacted(exchange, summary.text)],
        usage=usage_object(summary.usage),
    )
    exchange.answer(answer)


def _said(exchange: "Exchange", items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """The user's messages as one, as templates want an answer between two."""
    users = [
        item for item in items if isinstance(item.value, MessageItem) and item.value.role == "user"
    ]
    made = stored(users, exchange.service.new_id)
    parts = [part for message in made for part in message["content"]]
    return [{**made[0], "content": parts}] if made else []


def _compacted(exchange: "Exchange", summary: str) -> dict[str, Any]:
    name = exchange.service.new_id("cmp_")
    return {"id": name, "type": "compaction", "encrypted_content": packed(summary)}
