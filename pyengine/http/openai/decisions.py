"""``POST /v1/decisions``: questions about an input, answered by probabilities."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.completion import Usage
from pyengine.decisions.plan import SCORING, made_plan
from pyengine.decisions.questions import (
    Answer,
    Choice,
    ChoiceAnswer,
    Option,
    Predicate,
    PredicateAnswer,
    Question,
    Score,
)
from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.openai.responses.input import conversation, read_items
from pyengine.http.openai.schema.decisions import (
    ChoiceObject,
    ChoiceParam,
    ChoiceProbability,
    DecisionInputDetails,
    DecisionObject,
    DecisionRequest,
    DecisionUsage,
    PredicateObject,
    PredicateParam,
    ScoreAnswerObject,
    ScoreParam,
    ScoreProbability,
)
from pyengine.http.operations.tracing import Asked
from pyengine.request.generation import Generation
from pyengine.request.options import RequestOptions

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(DecisionRequest)
_write_json = msgspec.json.encode


async def create(exchange: "Exchange") -> None:
    """Answer questions about an input by probabilities."""
    request = await exchange.decode(_decoder)
    engine = exchange.require_model(request.model)
    given = request.input
    items = given if isinstance(given, str) else [_item(item) for item in given]
    read = read_items(items, exchange.service.fields, exchange.warnings)
    messages = conversation(read, None)
    if not messages:
        raise InvalidRequestError("'input' must not be empty.", param="input")
    questions = [_question(each, f"questions[{i}]") for i, each in enumerate(request.questions)]
    plan = await made_plan(
        engine.handler, engine.tokenizer, messages, questions, request.orders or 1
    )
    options = request.scheduled(tenant=request.user)
    exchange.generate(
        [], options, Asked("decisions", exchange.service.new_id("dec_"), SCORING, False)
    )

    def begin(token_ids: list[int], asked: RequestOptions) -> Generation:
        return exchange.generate_more([(token_ids, SCORING)], asked)[0]

    made = await plan.decide(begin, options)
    response = DecisionObject(
        answers=[_object(answer) for answer in made.answers],
        model=request.model or engine.model_name,
        usage=_usage(made.usages),
    )
    exchange.answer(response)


def _item(item: dict[str, Any]) -> dict[str, Any]:
    """An item whose parts of JSON, and refusals, are text."""
    parts = item.get("content")
    if not isinstance(parts, list):
        return item
    return {**item, "content": [_part(part) for part in parts]}


def _part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_json" and "data" in part:
        return {"type": "input_text", "text": _write_json(part["data"]).decode()}
    if kind == "refusal" and "refusal" in part:
        return {"type": "output_text", "text": part["refusal"]}
    return part


def _question(given: PredicateParam | ChoiceParam | ScoreParam, at: str) -> Question:
    text = _instructions(given.instructions, f"{at}.instructions")
    if isinstance(given, PredicateParam):
        return Predicate(instructions=text, name=given.name)
    if isinstance(given, ChoiceParam):
        choices = [Option(each.value, each.description) for each in given.choices]
        return Choice(instructions=text, choices=choices, name=given.name)
    levels = [Option(each.label, each.description) for each in given.levels]
    return Score(instructions=text, levels=levels, name=given.name)


def _instructions(given: str | list[dict[str, Any]], at: str) -> str:
    if isinstance(given, str):
        return given
    texts = []
    for index, raw in enumerate(given):
        part = _part(raw)
        if part.get("type") != "input_text" or not isinstance(part.get("text"), str):
            where = f"{at}[{index}]"
            raise UnsupportedParameterError(
                f"'{where}' must be of type input_text or input_json.", param=where
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _object(answer: Answer) -> PredicateObject | ChoiceObject | ScoreAnswerObject:
    if isinstance(answer, PredicateAnswer):
        return PredicateObject(answer.probability, answer.name)
    if isinstance(answer, ChoiceAnswer):
        options = [ChoiceProbability(*pair) for pair in answer.probabilities]
        return ChoiceObject(answer.choice, answer.confidence, options, answer.name)
    levels = [
        ScoreProbability(value, label, probability)
        for value, (label, probability) in enumerate(answer.probabilities)
    ]
    return ScoreAnswerObject(answer.score, answer.confidence, levels, answer.name)


def _usage(usages: Sequence[Usage]) -> DecisionUsage:
    tokens = sum(usage.prompt_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    return DecisionUsage(tokens, DecisionInputDetails(cached), tokens)
