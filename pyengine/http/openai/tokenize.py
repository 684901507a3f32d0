"""``POST /tokenize``, ``/detokenize`` and ``/apply-template``: what the model sees of a request."""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from pyengine.chat.answer_spec import AnswerSpec
from pyengine.chat.options import ChatOptions
from pyengine.errors import InvalidRequestError
from pyengine.http.errors import FieldNames
from pyengine.http.openai.completions.chat_options import own_template
from pyengine.http.openai.schema.tokenize import (
    ApplyTemplateAnswer,
    ApplyTemplateRequest,
    ConversationFields,
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)
from pyengine.http.openai.tools import known, read_tools
from pyengine.sampling import SamplingParams

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_tokenize = msgspec.json.Decoder(TokenizeRequest)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)
_apply = msgspec.json.Decoder(ApplyTemplateRequest)


async def tokenize(exchange: "Exchange") -> None:
    """The token ids of a text, or of a conversation."""
    request = await exchange.decode(_tokenize)
    engine = exchange.require_model(request.model)
    given = [
        name for name in ("prompt", "content", "messages") if getattr(request, name) is not None
    ]
    if len(given) != 1:
        raise InvalidRequestError(
            "Give one of 'prompt', 'content' and 'messages'.", param=(given or ["prompt"])[-1]
        )
    if request.messages is not None:
        token_ids = (await _prepared(exchange, request))[1]
    else:
        text = request.prompt if request.content is None else request.content
        special = request.add_special_tokens
        if special is None:
            special = request.content is None
        token_ids = await engine.tokenizer.encode_async(text or "", special)
    answer = TokenizeAnswer(
        count=len(token_ids), max_model_len=engine.max_context, tokens=token_ids
    )
    if request.return_token_strs:
        await engine.tokenizer.load_bytes()
        spelled = map(engine.tokenizer.token_bytes, token_ids)
        answer.token_strs = [each.decode("utf-8", "replace") for each in spelled]
    exchange.answer(answer)


async def detokenize(exchange: "Exchange") -> None:
    """The text of token ids."""
    request = await exchange.decode(_detokenize)
    tokenizer = exchange.require_model(request.model).tokenizer
    if not all(0 <= token < tokenizer.vocab_size for token in request.tokens):
        raise InvalidRequestError(
            f"'tokens' must be token ids from 0 to {tokenizer.vocab_size - 1}.", param="tokens"
        )
    text = await asyncio.to_thread(
        tokenizer.decode, request.tokens, bool(request.skip_special_tokens)
    )
    exchange.answer(DetokenizeAnswer(text, text))


async def apply_template(exchange: "Exchange") -> None:
    """The text of a conversation, as the chat template writes it."""
    request = await exchange.decode(_apply)
    exchange.require_model(request.model)
    spec, _ = await _prepared(exchange, request)
    answer = ApplyTemplateAnswer(spec.prompt.text)
    exchange.answer(answer)


async def _prepared(
    exchange: "Exchange", request: ConversationFields
) -> tuple[AnswerSpec, list[int]]:
    """The prompt of a conversation, and its token ids."""
    exchange.names = FieldNames({"template_arguments": "chat_template_kwargs"})
    if request.messages is None:
        raise InvalidRequestError(
            "Missing required parameter: 'messages'.",
            param="messages",
            code="missing_required_parameter",
        )
    options = ChatOptions(
        tools=known(read_tools(request.tools, exchange.service.limits, exchange.warnings)),
        chat_template=own_template(request.chat_template, exchange.service.limits),
        template_arguments=request.chat_template_kwargs or {},
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=bool(request.continue_final_message),
    )
    spec, token_ids = await exchange.service.engine.prepare(
        request.messages, SamplingParams(), options
    )
    exchange.warn(*spec.warnings)
    return spec, token_ids
