"""``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.chat.answer import ChatUpdate
from pyengine.chat.answer_spec import AnswerSpec
from pyengine.http.answering import Question, answer, prepare, reasoning, thinking_budget
from pyengine.http.anthropic.answer import MessageWriter
from pyengine.http.anthropic.context_edits import (
    applied,
    due,
    without_results,
    without_thinking,
)
from pyengine.http.anthropic.conversation import answer_format, chat_options, conversation
from pyengine.http.anthropic.schema import (
    ClearThinking,
    CountTokensRequest,
    MessagesRequest,
    TokenCount,
)
from pyengine.http.errors import FieldNames
from pyengine.http.openai.completions.chat_options import grammar_names
from pyengine.http.openai.structured import Constraint
from pyengine.http.operations.tracing import Asked
from pyengine.request.generation_config import over
from pyengine.request.options import RequestOptions
from pyengine.sampling import SamplingParams

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(MessagesRequest)
_counted = msgspec.json.Decoder(CountTokensRequest)
# The request's fields by the engine's parameters.
_FIELDS = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "grammar": "tools",
    "reasoning": "thinking",
    "thinking_budget": "thinking.budget_tokens",
    "template_arguments": "chat_template_kwargs",
}


async def create(exchange: "Exchange") -> None:
    """Answer in the form of Anthropic's Messages."""
    await answer(exchange, await _read(exchange))


async def _read(exchange: "Exchange") -> Question[ChatUpdate]:
    request = await exchange.decode(_decoder)
    exchange.names = FieldNames(_FIELDS)
    engine = exchange.require_model(request.model)
    params = _params(request, engine.default_sampling_params)
    made = await _prepared(exchange, request, params)
    answer_id = exchange.service.new_id("msg_")
    user = None if request.metadata is None else request.metadata.user_id
    model, warnings = request.model or engine.model_name, tuple(exchange.warnings)
    shows = request.thinking is None or request.thinking.display != "omitted"
    return Question(
        prompts=[made.token_ids],
        params=made.spec.params,
        options=RequestOptions(
            tenant=user,
            grammar=made.spec.grammar,
            thinking_budget=made.spec.thinking_budget,
            priority=request.priority or 0,
            cache_salt=request.cache_salt,
            timeout=request.timeout,
        ),
        asked=Asked("chat", answer_id, params, bool(request.stream)),
        reading=made.spec.answer,
        writer=lambda _: MessageWriter(answer_id, model, warnings, made.edits, shows=shows),
    )


async def count_tokens(exchange: "Exchange") -> None:
    """Count the tokens of a conversation."""
    request = await exchange.decode(_counted)
    exchange.names = FieldNames(_FIELDS)
    exchange.require_model(request.model)
    made = await _prepared(exchange, request, SamplingParams())
    counted = TokenCount(len(made.token_ids))
    if made.edits is not None:
        counted.context_management = {"original_input_tokens": made.original_tokens}
    exchange.answer(counted)


@dataclass(frozen=True)
class _Prepared:
    """A conversation that the engine can be asked to answer.

    Attributes:
        edits: What was left out of it, where the request asks for that.
        original_tokens: The tokens of its prompt before that.
    """

    spec: AnswerSpec
    token_ids: list[int]
    edits: list[dict[str, Any]] | None
    original_tokens: int


async def _prepared(
    exchange: "Exchange", request: CountTokensRequest, params: SamplingParams
) -> _Prepared:
    """Make the prompt, once what ``context_management`` names is left out."""
    service = exchange.service
    wanted = None if request.thinking is None else request.thinking.type != "disabled"
    thinks = reasoning(exchange, wanted, "thinking")
    most = None if request.thinking is None else request.thinking.budget_tokens
    budget = thinking_budget(exchange, most, "thinking.budget_tokens")
    options = chat_options(
        request, (thinks, budget), service.limits, service.fields, exchange.warnings
    )
    found = answer_format(request)
    grammar, schemas = grammar_names(
        Constraint(options.grammar, "tools" if found is None else found[0]), options
    )
    exchange.names = FieldNames({**_FIELDS, "grammar": grammar}, schemas)
    messages = conversation(request, exchange.warnings)
    spec, token_ids = await prepare(exchange, messages, params, options)
    first = len(token_ids)
    if request.context_management is None:
        return _Prepared(spec, token_ids, None, first)
    edits = []
    for edit in request.context_management.edits:
        if isinstance(edit, ClearThinking):
            shorter, cleared = without_thinking(messages, edit)
        elif due(messages, edit, len(token_ids)):
            shorter, cleared = without_results(messages, edit)
        else:
            continue
        if not cleared:
            continue
        before = len(token_ids)
        spec, fewer = await prepare(exchange, shorter, params, options)
        least = getattr(edit, "clear_at_least", None)
        if least is not None and before - len(fewer) < least.value:
            spec, fewer = await prepare(exchange, messages, params, options)
            continue
        messages, token_ids = shorter, fewer
        edits.append(applied(edit, cleared, before - len(token_ids)))
    return _Prepared(spec, token_ids, edits, first)


def _params(request: MessagesRequest, defaults: SamplingParams) -> SamplingParams:
    given: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "seed": request.seed,
        "stop": None if request.stop_sequences is None else tuple(request.stop_sequences),
    }
    return over(defaults, {name: value for name, value in given.items() if value is not None})
