"""``POST /v1/responses``: answers that are not stored."""

import time
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.chat.options import ChatOptions
from pyengine.errors import InvalidRequestError
from pyengine.grammar import Grammar, json_object
from pyengine.http import sse
from pyengine.http.errors import FieldNames
from pyengine.http.limits import Limits, check_messages
from pyengine.http.openai.chat_options import grammar_names, template_arguments
from pyengine.http.openai.logprobs import wanted_in_response
from pyengine.http.openai.response_input import conversation
from pyengine.http.openai.response_output import ResponseEvents, whole_response
from pyengine.http.openai.schema.responses import (
    ResponseObject,
    ResponsesRequest,
    TextJsonSchema,
)
from pyengine.http.openai.schema.sampling import request_options, sampling_params
from pyengine.http.openai.schema.structured import JsonObjectFormat, StructuredOutputs
from pyengine.http.openai.structured import Constraint, named_schema
from pyengine.http.openai.tool_choice import choice_in_response
from pyengine.http.openai.tools import read_tools
from pyengine.http.operations.tracing import Asked
from pyengine.sampling import SamplingParams
from pyengine.telemetry.timing import server_timing

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(ResponsesRequest)
_encode = msgspec.json.Encoder().encode
# The request's fields by the engine's parameters.
_FIELDS = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "template_arguments": "reasoning",
}
NOT_STORED = "'store': this server stores no answers."


async def create(exchange: "Exchange") -> None:
    """Answer the conversation of the input items."""
    request = await exchange.decode(_decoder)
    service = exchange.service
    engine = service.require_model(request.model)
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError(
            "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )
    exchange.names = FieldNames(_FIELDS)
    top_logprobs = wanted_in_response(request, exchange.warnings)
    defaults = engine.default_sampling_params
    params = sampling_params(request, request.max_output_tokens, top_logprobs, defaults)
    options = _options(request, service.limits)
    grammar, schemas = grammar_names(Constraint(options.grammar, "text.format"), options)
    exchange.names = FieldNames({**_FIELDS, "grammar": grammar}, schemas)
    messages = conversation(request.input, request.instructions, service.fields, exchange.warnings)
    check_messages(len(messages), service.limits)
    spec, token_ids = await engine.prepare(messages, params, options)
    if request.store:
        exchange.warn(NOT_STORED)
    exchange.warn(*spec.warnings)
    model = request.model or engine.model_name
    response = _response(request, service.new_id("resp_"), model, params, options)
    response.warn(exchange.warnings)
    generations = exchange.generate(
        [(token_ids, spec.params)],
        request_options(request, spec.grammar),
        Asked("chat", response.id, params, bool(request.stream)),
    )
    answer, reasons = spec.answer(generations[0]), engine.handler.reasons
    if request.stream:
        await sse.stream(exchange, [answer], ResponseEvents(response, service.new_id, reasons))
        return
    whole = await answer
    response.warn(whole.warnings)
    timing = server_timing([answer.outcome.timing])
    body = _encode(whole_response(response, whole, service.new_id, reasons))
    exchange.reply(body, 200, ("server-timing", timing))


def _options(request: ResponsesRequest, limits: Limits) -> ChatOptions:
    choice, allowed = choice_in_response(request.tool_choice)
    effort = None if request.reasoning is None else request.reasoning.effort
    return ChatOptions(
        tools=read_tools(request.tools, limits),
        tool_choice=choice,
        allowed_tools=allowed,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        grammar=_grammar(request),
        template_arguments=template_arguments(
            request.chat_template_kwargs, effort, "reasoning.effort"
        ),
        parameters_at="parameters",
    )


def _grammar(request: ResponsesRequest) -> Grammar | None:
    given = None if request.text is None else request.text.format
    if isinstance(given, JsonObjectFormat):
        return json_object()
    if isinstance(given, TextJsonSchema):
        return named_schema(
            given.name, given.schema, given.strict, StructuredOutputs(), "text.format"
        )
    return None


def _response(
    request: ResponsesRequest,
    answer_id: str,
    model: str,
    params: SamplingParams,
    options: ChatOptions,
) -> ResponseObject:
    """The response as it begins: what was asked for, and the defaults of what was not given."""
    text: dict[str, Any] = {"format": {"type": "text"}}
    if request.text is not None and request.text.format is not None:
        text["format"] = msgspec.to_builtins(request.text.format)
    choice = "auto" if request.tool_choice is None else request.tool_choice
    effort = None if request.reasoning is None else request.reasoning.effort
    return ResponseObject(
        id=answer_id,
        created_at=int(time.time()),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        model=model,
        parallel_tool_calls=options.parallel_tool_calls,
        reasoning={"effort": effort, "summary": None},
        temperature=params.temperature,
        text=text,
        tool_choice=msgspec.to_builtins(choice),
        tools=[
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
                "strict": tool.strict,
            }
            for tool in options.tools
        ],
        top_logprobs=request.top_logprobs or 0,
        top_p=params.top_p,
    )
