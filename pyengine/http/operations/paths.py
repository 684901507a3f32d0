"""Every path: what it takes, what it gives, and in which form."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pyengine.http.admin.adapters import AdapterState, LoadLoraAdapter, UnloadLoraAdapter
from pyengine.http.admin.endpoints import AbortRequest, RequestList, ResetAnswer, SleepState
from pyengine.http.anthropic.schema import (
    CountTokensRequest,
    MessageAnswer,
    MessagesRequest,
    TokenCount,
)
from pyengine.http.extensions import extensions
from pyengine.http.openai.completions.stored_chat import UpdateRequest
from pyengine.http.openai.files import Upload
from pyengine.http.openai.schema.batches import BatchObject, BatchRequest, FileObject
from pyengine.http.openai.schema.chat import ChatRequest, ChatResponse
from pyengine.http.openai.schema.completions import CompletionRequest, CompletionResponse
from pyengine.http.openai.schema.decisions import DecisionObject, DecisionRequest
from pyengine.http.openai.schema.embeddings import EmbeddingRequest, EmbeddingResponse
from pyengine.http.openai.schema.models import Model, ModelList
from pyengine.http.openai.schema.rerank import (
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
)
from pyengine.http.openai.schema.response_object import ResponseObject
from pyengine.http.openai.schema.responses import (
    InputTokens,
    InputTokensRequest,
    ResponsesRequest,
)
from pyengine.http.openai.schema.tokenize import (
    ApplyTemplateAnswer,
    ApplyTemplateRequest,
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)
from pyengine.http.operations.operation import EVENTS, Operation, Status, Version, object_id, query
from pyengine.http.query import Deleted, ObjectList

_LISTED = (
    query("after", "The id behind which the list begins.", {"type": "string"}),
    query("limit", "The most objects.", {"type": "integer", "minimum": 1, "maximum": 100}),
    query("order", "The first added first, or last.", {"enum": ["asc", "desc"]}),
)

_MODEL_NAME = {
    "name": "model", "in": "path", "required": True, "description": "Name of a model.",
    "schema": {"type": "string", "minLength": 1},
}  # fmt: skip

_CHAT = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 50}
_OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        "Answer a conversation.", ChatResponse, ChatRequest, stream=EVENTS, example=_CHAT
    ),
    ("GET", "/v1/chat/completions"): Operation(
        "The stored completions.",
        ObjectList,
        parameters=(*_LISTED, query("model", "Completions of one model.", {"type": "string"})),
    ),
    ("GET", "/v1/chat/completions/{completion}"): Operation(
        "A stored completion.", ChatResponse, parameters=(object_id("completion"),)
    ),
    ("POST", "/v1/chat/completions/{completion}"): Operation(
        "Change a stored completion's metadata.",
        ChatResponse,
        UpdateRequest,
        parameters=(object_id("completion"),),
    ),
    ("DELETE", "/v1/chat/completions/{completion}"): Operation(
        "Remove a stored completion.", Deleted, parameters=(object_id("completion"),)
    ),
    ("GET", "/v1/chat/completions/{completion}/messages"): Operation(
        "The messages that a stored completion answers.",
        ObjectList,
        parameters=(object_id("completion"), *_LISTED),
    ),
    ("POST", "/v1/completions"): Operation(
        "Continue one prompt or several.",
        CompletionResponse,
        CompletionRequest,
        stream=EVENTS,
        example={"prompt": "Once upon a time", "max_tokens": 20},
    ),
    ("POST", "/v1/responses"): Operation(
        "Answer in the form of OpenAI's Responses.",
        ResponseObject,
        ResponsesRequest,
        stream=EVENTS,
        example={"input": "Who are you?", "max_output_tokens": 50},
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "Count the tokens of a response's prompt.", InputTokens, InputTokensRequest
    ),
    ("GET", "/v1/responses/{response}"): Operation(
        "A stored response, or the events of one in the background.",
        ResponseObject,
        parameters=(
            object_id("response"),
            query("stream", "As events.", {"type": "boolean"}),
            query("starting_after", "The number before the first event.", {"type": "integer"}),
        ),
        stream=EVENTS,
    ),
    ("DELETE", "/v1/responses/{response}"): Operation(
        "Remove a stored response.", Deleted, parameters=(object_id("response"),)
    ),
    ("POST", "/v1/responses/{response}/cancel"): Operation(
        "End a background response.", ResponseObject, parameters=(object_id("response"),)
    ),
    ("GET", "/v1/responses/{response}/input_items"): Operation(
        "The items of a stored response's input.",
        ObjectList,
        parameters=(object_id("response"), *_LISTED),
    ),
    ("POST", "/v1/files"): Operation(
        "Store a file.", FileObject, Upload, media="multipart/form-data"
    ),
    ("GET", "/v1/files"): Operation(
        "The stored files.",
        ObjectList,
        parameters=(*_LISTED, query("purpose", "Files of one purpose.", {"type": "string"})),
    ),
    ("GET", "/v1/files/{file}"): Operation("A file.", FileObject, parameters=(object_id("file"),)),
    ("DELETE", "/v1/files/{file}"): Operation(
        "Remove a file.", Deleted, parameters=(object_id("file"),)
    ),
    ("GET", "/v1/files/{file}/content"): Operation(
        "The content of a file.", "application/octet-stream", parameters=(object_id("file"),)
    ),
    ("POST", "/v1/batches"): Operation(
        "Answer the requests of a file, when there is room.", BatchObject, BatchRequest
    ),
    ("GET", "/v1/batches"): Operation("The batches.", ObjectList, parameters=_LISTED),
    ("GET", "/v1/batches/{batch}"): Operation(
        "A batch.", BatchObject, parameters=(object_id("batch"),)
    ),
    ("POST", "/v1/batches/{batch}/cancel"): Operation(
        "Answer no more of a batch's requests.", BatchObject, parameters=(object_id("batch"),)
    ),
    ("POST", "/v1/messages"): Operation(
        "Answer in the form of Anthropic's Messages.",
        MessageAnswer,
        MessagesRequest,
        stream=EVENTS,
        example=_CHAT,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Count the tokens of a conversation.", TokenCount, CountTokensRequest
    ),
    ("POST", "/v1/embeddings"): Operation(
        "The vectors of texts.",
        EmbeddingResponse,
        EmbeddingRequest,
        example={"input": ["A text.", "Another."]},
    ),
    ("POST", "/v1/rerank"): Operation(
        "Order documents by how well they answer a query.",
        RerankResponse,
        RerankRequest,
        example={"query": "bread", "documents": ["How to bake.", "Paris."]},
    ),
    ("POST", "/v2/rerank"): Operation("As /v1/rerank.", RerankResponse, RerankRequest),
    ("POST", "/v1/score"): Operation("Score pairs of texts.", ScoreResponse, ScoreRequest),
    ("POST", "/v1/decisions"): Operation(
        "Answer questions about an input by probabilities.",
        DecisionObject,
        DecisionRequest,
        example={
            "input": "I was charged twice!",
            "questions": [{"type": "predicate", "instructions": "The client is angry."}],
        },
    ),
    ("POST", "/tokenize"): Operation(
        "The token ids of a text or a conversation.", TokenizeAnswer, TokenizeRequest
    ),
    ("POST", "/detokenize"): Operation(
        "The text of token ids.", DetokenizeAnswer, DetokenizeRequest
    ),
    ("POST", "/apply-template"): Operation(
        "The text of a conversation, as the chat template writes it.",
        ApplyTemplateAnswer,
        ApplyTemplateRequest,
    ),
    ("GET", "/v1/models"): Operation("The models that are served.", ModelList),
    ("GET", "/v1/models/{model}"): Operation("One model.", Model, None, (_MODEL_NAME,)),
    ("GET", "/health"): Operation("The process lives.", Status),
    ("GET", "/ping"): Operation("The process lives.", Status),
    ("GET", "/ready"): Operation("The engine works on requests.", Status),
    ("GET", "/version"): Operation("The version of pyengine.", Version),
    ("GET", "/metrics"): Operation(
        "Metrics for Prometheus.",
        "text/plain",
        None,
        (query("experts", "1 counts every expert of a mixture too.", {"enum": ["0", "1"]}),),
    ),
    ("GET", "/debug/profile"): Operation(
        "Watch the engine, and answer where its time went.",
        dict[str, Any],
        None,
        (
            query("seconds", "How long, at most 60.", {"type": "number", "maximum": 60}),
            query("spans", "1 gives the spans too.", {"enum": ["0", "1"]}),
        ),
    ),
    ("GET", "/debug/record"): Operation(
        "What ended since the last such request, for a recording.",
        dict[str, Any],
        None,
        (query("since", "Number of the first span.", {"type": "integer", "minimum": 0}),),
    ),
    ("GET", "/openapi.json"): Operation("This description.", dict[str, Any]),
    ("POST", "/v1/load_lora_adapter"): Operation(
        "Load an adapter, with the admin key.", AdapterState, LoadLoraAdapter
    ),
    ("POST", "/v1/unload_lora_adapter"): Operation(
        "Take an adapter's name away, with the admin key.", AdapterState, UnloadLoraAdapter
    ),
    ("GET", "/admin/requests"): Operation("Requests that are being answered.", RequestList),
    ("POST", "/admin/abort_request"): Operation(
        "End one request, or all.", RequestList, AbortRequest
    ),
    ("POST", "/admin/reset_prefix_cache"): Operation("Forget cached prefixes.", ResetAnswer),
    ("POST", "/admin/sleep"): Operation(
        "Free all of the engine's memory; requests wait.", SleepState
    ),
    ("POST", "/admin/wake_up"): Operation("Load the model again; requests go on.", SleepState),
    ("GET", "/admin/is_sleeping"): Operation("Whether the engine sleeps.", SleepState),
    ("GET", "/docs"): Operation("This description, for people.", "text/html"),
}


@cache
def operations() -> Mapping[tuple[str, str], Operation]:
    """Every path that the application has but for pages; a test compares them."""
    found = dict(_OPERATIONS)
    for extension in extensions():
        found.update(extension.operations)
    return found
