"""``POST /v1/responses``: answers that are not stored."""

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.chat.options import ChatOptions
from pyengine.chat.tools import Tool
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.grammar import Grammar, json_object
from pyengine.http import sse
from pyengine.http.limits import Limits
from pyengine.http.openai.blame import blamed
from pyengine.http.openai.chat_completions import render
from pyengine.http.openai.chat_options import effort_argument
from pyengine.http.openai.logprobs import wanted_in_response
from pyengine.http.openai.response_input import conversation
from pyengine.http.openai.response_output import ResponseEvents, whole_response
from pyengine.http.openai.schema.common import refuse_unsupported
from pyengine.http.openai.schema.responses import (
    UNSUPPORTED_IN_RESPONSES,
    FunctionToolParam,
    ResponseObject,
    ResponsesRequest,
    TextJsonSchema,
)
from pyengine.http.openai.schema.structured import JsonObjectFormat, StructuredOutputs
from pyengine.http.openai.structured import Constraint, named_schema
from pyengine.http.openai.tool_choice import choice_in_response
from pyengine.http.operations.tracing import Asked
from pyengine.sampling import SamplingParams
from pyengine.telemetry.timing import server_timing

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(ResponsesRequest)
_encode = msgspec.json.Encoder().encode


async def create(exchange: "Exchange") -> None:
    """Answer what the items say."""
    request = await exchange.decode(_decoder)
    service = exchange.service
    engine = service.require_model(request.model)
    _refuse(request)
    params = _params(request)
    options = _options(request, engine.handler.template, service.limits)
    exchange.names = {
        "prompt": "input",
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "grammar": partial(blamed, Constraint(options.grammar, "text.format"), options),
        "template_arguments": "reasoning",
    }
    messages = conversation(request.input, request.instructions)
    token_ids, text, warnings = await render(engine, messages, options)
    plan = engine.handler.plan(text, params, options)
    response = _response(request, service.new_id("resp_"), engine.model_name, options, warnings)
    generation = engine.generate(
        token_ids,
        plan.params,
        priority=0,
        tenant=request.user,
        cache_salt=None,
        grammar=plan.grammar,
        close_grammar=False,
        prediction=None,
    )
    exchange.watch([generation], Asked("chat", response.id, params, bool(request.stream)))
    answer, reasons = plan.answer(generation), engine.handler.reasons
    if request.stream:
        await sse.stream(exchange, [answer], ResponseEvents(response, service.new_id, reasons))
        return
    whole = await answer
    if told := [*warnings, *whole.warnings]:
        response.warnings = told
    timing = server_timing([generation.outcome.timing])
    body = _encode(whole_response(response, whole, service.new_id, reasons))
    exchange.reply(body, 200, ("server-timing", timing))


def _refuse(request: ResponsesRequest) -> None:
    """Refuse by name what is not supported."""
    refuse_unsupported(request, UNSUPPORTED_IN_RESPONSES)
    if request.stream_options is not None:
        if not request.stream:
            raise InvalidRequestError(
                "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
            )
        for name, value in request.stream_options.items():
            if name != "include_obfuscation" or value:
                at = f"stream_options.{name}"
                raise UnsupportedParameterError(f"'{at}' is not supported.", param=at)
    nested: tuple[tuple[str, Any], ...] = (("text", request.text), ("reasoning", request.reasoning))
    for field, given in nested:
        for name in ("verbosity", "mode", "summary", "generate_summary", "context"):
            if getattr(given, name, None) is not None:
                at = f"{field}.{name}"
                raise UnsupportedParameterError(f"'{at}' is not supported.", param=at)


def _params(request: ResponsesRequest) -> SamplingParams:
    params = SamplingParams(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        max_tokens=request.max_output_tokens,
        logprobs=wanted_in_response(request),
    )
    try:
        params.validate()
    except InvalidRequestError as error:
        if error.param == "max_tokens":
            at = "max_output_tokens"
            raise InvalidRequestError(error.message.replace("max_tokens", at), param=at) from None
        raise
    return params


def _options(request: ResponsesRequest, template: Any, limits: Limits) -> ChatOptions:
    given = request.tools or []
    if len(given) > limits.tools:
        raise InvalidRequestError(
            f"'tools' may hold {limits.tools} tools, not {len(given)}.", param="tools"
        )
    choice, allowed = choice_in_response(request.tool_choice)
    effort = None if request.reasoning is None else request.reasoning.effort
    return ChatOptions(
        tools=tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given)),
        tool_choice=choice,
        allowed_tools=allowed,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        grammar=_grammar(request),
        template_arguments=effort_argument(effort, template, "reasoning.effort"),
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


def _tool(tool: FunctionToolParam, at: str) -> Tool:
    if tool.type != "function":
        raise UnsupportedParameterError(
            f"Tools of type '{tool.type[:100]}' are not supported ('{at}').", param=f"{at}.type"
        )
    for name in ("output_schema", "defer_loading", "allowed_callers"):
        if getattr(tool, name):
            where = f"{at}.{name}"
            raise UnsupportedParameterError(f"'{where}' is not supported.", param=where)
    entry = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    try:
        return Tool.from_openai({"function": entry}, at)
    except InvalidRequestError as error:
        param = (error.param or at).replace(".function", "")
        raise InvalidRequestError(error.message.replace(".function", ""), param=param) from None


def _response(
    request: ResponsesRequest,
    answer_id: str,
    model: str,
    options: ChatOptions,
    warnings: list[str],
) -> ResponseObject:
    """The response as it begins: what was asked, and what was taken for what was not said."""
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
        temperature=1.0 if request.temperature is None else request.temperature,
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
        top_p=1.0 if request.top_p is None else request.top_p,
        warnings=warnings or msgspec.UNSET,
    )
