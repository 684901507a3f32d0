"""From a Responses request to what the engine is asked, and the response as it begins."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.chat.answer_spec import AnswerSpec
from pyengine.chat.messages import Message
from pyengine.chat.options import ChatOptions
from pyengine.errors import ContextLengthError, InvalidRequestError
from pyengine.grammar import Grammar
from pyengine.http.answering import prepare
from pyengine.http.errors import FieldNames, NoSuchObjectError
from pyengine.http.limits import check_messages
from pyengine.http.openai.completions.chat_options import grammar_names, template_arguments
from pyengine.http.openai.logprobs import OF_REASONING, wanted_in_response
from pyengine.http.openai.responses.conversations import items_in
from pyengine.http.openai.responses.earlier import item_ids, previous, with_referenced
from pyengine.http.openai.responses.input import (
    InputItem,
    conversation,
    read_items,
    stored_items,
    tools_of,
    without_oldest,
)
from pyengine.http.openai.responses.items import Writing
from pyengine.http.openai.responses.tools import ToolReader, echoed
from pyengine.http.openai.schema.common import check_metadata
from pyengine.http.openai.schema.response_object import ConversationReference, ResponseObject
from pyengine.http.openai.schema.responses import (
    ResponsesRequest,
    TextJsonSchema,
)
from pyengine.http.openai.schema.sampling import sampling_params
from pyengine.http.openai.schema.structured import JsonObjectFormat, StructuredOutputs
from pyengine.http.openai.structured import Constraint, constraint, named_schema, object_grammar
from pyengine.http.openai.tool_choice import choice_in_response
from pyengine.http.openai.tools import ServedTool, known
from pyengine.sampling import SamplingParams

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

# The request's fields by the engine's parameters.
_FIELDS = {
    "prompt": "input",
    "thinking_budget": "reasoning.max_tokens",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "template_arguments": "reasoning",
}


@dataclass(frozen=True)
class Prepared:
    """A request that the engine can be asked.

    Attributes:
        items: The items of the input, earlier ones first.
        earlier: How many of them come from earlier responses or the conversation.
        spec: How the conversation is answered.
        token_ids: Its prompt.
        params: The sampling parameters.
        options: The options besides sampling.
        served: The tools, by the names that the model knows.
        close: Whether what a grammar has begun is ended within the answer's limit.
    """

    items: list[InputItem]
    earlier: int
    spec: AnswerSpec
    token_ids: list[int]
    params: SamplingParams
    options: ChatOptions
    served: Mapping[str, ServedTool]
    close: bool


async def prepared(exchange: "Exchange", request: ResponsesRequest) -> Prepared:
    """Read the conversation, and make the prompt.

    Raises:
        InvalidRequestError: Naming the field at fault.
    """
    service = exchange.service
    exchange.names = FieldNames(_FIELDS)
    check_metadata(request.metadata)
    top_logprobs = wanted_in_response(request, exchange.warnings)
    defaults = service.engine.default_sampling_params
    params = sampling_params(request, request.max_output_tokens, top_logprobs, defaults)
    before, new = await all_items(exchange, request)
    items = before + new
    reader = ToolReader(service.fields, exchange.warnings)
    served = reader.read(request.tools, tools_of(items), service.limits)
    wanted = _constraint(request)
    options = _options(request, served, wanted.grammar)
    grammar, schemas = grammar_names(wanted, options)
    exchange.names = FieldNames({**_FIELDS, "grammar": grammar}, schemas)
    messages = conversation(items, request.instructions)
    check_messages(len(messages), service.limits)
    if request.truncation == "auto":
        spec, token_ids = await shortened(exchange, messages, params, options)
        exchange.warn(*spec.warnings)
    else:
        spec, token_ids = await prepare(exchange, messages, params, options)
    by_name = {each.tool.name: each for each in served}
    return Prepared(items, len(before), spec, token_ids, params, options, by_name, wanted.close)


async def all_items(
    exchange: "Exchange", request: ResponsesRequest
) -> tuple[list[InputItem], list[InputItem]]:
    """The items of an earlier response or of the conversation, and those of the input.

    Raises:
        InvalidRequestError: Naming the field at fault.
        NoSuchObjectError: There is no such conversation.
    """
    fields, known = exchange.service.fields, []
    before: list[InputItem] = []
    if request.conversation is not None:
        if request.previous_response_id is not None:
            raise InvalidRequestError(
                "'conversation' and 'previous_response_id' do not go together.",
                param="conversation",
            )
        try:
            known = await items_in(exchange, conversation_id(request))
        except NoSuchObjectError as error:
            error.param = "conversation"
            raise
        before = stored_items(known, fields)
    elif request.previous_response_id is not None:
        before = await previous(exchange, request.previous_response_id)
    given = await with_referenced(exchange, request.input, known)
    return before, read_items(given, fields, exchange.warnings)


def conversation_id(request: ResponsesRequest) -> str:
    """The id of the request's conversation; empty without one."""
    given = request.conversation or ""
    return given if isinstance(given, str) else given.id


async def shortened(
    exchange: "Exchange", messages: Sequence[Message], params: SamplingParams, options: ChatOptions
) -> tuple[AnswerSpec, list[int]]:
    """The longest end of a conversation that fits the context, by whole turns. O(log turns).

    Raises:
        ContextLengthError: Its last turn alone does not fit.
    """
    engine = exchange.service.engine
    most = engine.max_context - (params.max_tokens or 1)

    async def fitting(chosen: Sequence[Message]) -> tuple[AnswerSpec, list[int]] | None:
        try:
            spec, token_ids = await engine.prepare(chosen, params, options)
        except ContextLengthError:
            return None
        return (spec, token_ids) if len(token_ids) <= most else None

    if (found := await fitting(messages)) is not None:
        return found
    shorter = without_oldest(messages)
    low, high = 0, len(shorter)  # those before low are too long, the one at high is known to fit
    best = None
    while low < high:
        middle = (low + high) // 2
        if (found := await fitting(shorter[middle])) is not None:
            best, high = found, middle
        else:
            low = middle + 1
    if best is None:
        return await engine.prepare(shorter[-1] if shorter else messages, params, options)
    left_out = len(messages) - len(shorter[high])
    exchange.warn(f"'truncation': the {left_out} oldest messages are left out.")
    return best


def _options(
    request: ResponsesRequest, served: Sequence[ServedTool], grammar: Grammar | None
) -> ChatOptions:
    choice, allowed = choice_in_response(request.tool_choice, served)
    effort = None if request.reasoning is None else request.reasoning.effort
    return ChatOptions(
        tools=known(served),
        tool_choice=choice,
        allowed_tools=allowed,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        grammar=grammar,
        thinking_budget=None if request.reasoning is None else request.reasoning.max_tokens,
        template_arguments=template_arguments(
            request.chat_template_kwargs,
            reasoning_effort=("reasoning.effort", effort),
            verbosity=("text.verbosity", None if request.text is None else request.text.verbosity),
        ),
        parameters_at="parameters",
    )


def _constraint(request: ResponsesRequest) -> Constraint:
    """What the answer's text must look like, by OpenAI's field or by the fields of chats.

    Raises:
        InvalidRequestError: Both say so, or one is malformed; names it.
    """
    wanted, grammar = constraint(request), _grammar(request)
    if grammar is None and wanted.grammar is not None:
        return wanted
    if wanted.grammar is not None:
        raise InvalidRequestError(
            f"'{wanted.field}' and 'text.format' both say what the answer must look like; give "
            "one.",
            param=wanted.field,
        )
    return Constraint(grammar, "text.format", wanted.close)


def _grammar(request: ResponsesRequest) -> Grammar | None:
    given = None if request.text is None else request.text.format
    if isinstance(given, JsonObjectFormat):
        return object_grammar(given)
    if isinstance(given, TextJsonSchema):
        return named_schema(
            given.name, given.schema, given.strict, StructuredOutputs(), "text.format"
        )
    return None


def writing(request: ResponsesRequest, answer_id: str, made: Prepared) -> Writing:
    """How the response is written."""
    options = request.stream_options
    return Writing(
        item_ids(answer_id),
        OF_REASONING in (request.include or ()),
        made.served,
        options is not None and bool(options.include_obfuscation),
    )


def begun(request: ResponsesRequest, answer_id: str, model: str, made: Prepared) -> ResponseObject:
    """The response as it begins: what was asked for, and the defaults of what was not given."""
    text: dict[str, Any] = {"format": {"type": "text"}}
    if request.text is not None and request.text.format is not None:
        text["format"] = msgspec.to_builtins(request.text.format)
    if request.text is not None and request.text.verbosity is not None:
        text["verbosity"] = request.text.verbosity
    name = conversation_id(request)
    choice = "auto" if request.tool_choice is None else request.tool_choice
    effort = None if request.reasoning is None else request.reasoning.effort
    return ResponseObject(
        id=answer_id,
        created_at=int(time.time()),
        status="queued" if request.background else "in_progress",
        background=bool(request.background),
        conversation=None
        if not (name := conversation_id(request))
        else ConversationReference(name),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        model=model,
        parallel_tool_calls=made.options.parallel_tool_calls,
        previous_response_id=request.previous_response_id,
        reasoning={"effort": effort, "summary": None},
        temperature=made.params.temperature,
        text=text,
        tool_choice=msgspec.to_builtins(choice),
        tools=echoed(request.tools, made.served),
        top_logprobs=request.top_logprobs or 0,
        top_p=made.params.top_p,
        truncation=request.truncation or "disabled",
        metadata=request.metadata or {},
    )
