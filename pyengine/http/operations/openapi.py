"""``GET /openapi.json``: the endpoint's description in OpenAPI 3.1, made of the types that decode
requests and encode answers. ``GET /docs``: a page that shows it.
"""

import inspect
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine._core import __version__
from pyengine.http.admin.endpoints import AbortRequest, RequestList, ResetAnswer, SleepState
from pyengine.http.anthropic.schema import (
    CountTokensRequest,
    MessageAnswer,
    MessagesRequest,
    TokenCount,
)
from pyengine.http.ollama.schema import (
    OllamaAnswer,
    OllamaChatRequest,
    OllamaEmbedAnswer,
    OllamaEmbeddingsAnswer,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from pyengine.http.openai.completions.stored_chat import UpdateRequest
from pyengine.http.openai.files import Upload
from pyengine.http.openai.schema.batches import BatchObject, BatchRequest, FileObject
from pyengine.http.openai.schema.chat import ChatRequest, ChatResponse
from pyengine.http.openai.schema.completions import CompletionRequest, CompletionResponse
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
from pyengine.http.query import Deleted, ObjectList

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_PAGE = Path(__file__).with_name("docs.html")
_JSON = "application/json"
_EVENTS = "text/event-stream"
_LINES = "application/x-ndjson"

# Errors that a request may end with, by status.
_ERRORS = {
    400: "The request is malformed, or asks for something that is not supported.",
    401: "The API key is missing or wrong.",
    403: "A web page, a name of the host, or a key that is not allowed here.",
    404: "There is no such model or path.",
    405: "The path has other methods.",
    408: "The body did not come in time.",
    413: "The body is too long.",
    414: "The path is too long.",
    415: "The body is not JSON, or compressed.",
    429: "The key has used what it may; Retry-After says when to come again.",
    431: "The headers are too long.",
    499: "The request was aborted.",
    500: "The engine failed, or a bug; the log has the cause.",
    503: "The model is loaded, the queue is full, or the server stops.",
    504: "The request took too long.",
}
_OF_GET = (400, 401, 403, 404, 405, 414, 431, 500, 503)


_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
}


class ErrorObject(msgspec.Struct):
    """What went wrong, the field at fault, and OpenAI's type and code of it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """The body of every error."""

    error: ErrorObject


class OllamaError(msgspec.Struct):
    """The body of every error, in Ollama's form."""

    error: str


class Status(msgspec.Struct):
    """The process lives, or takes requests."""

    status: str


class Version(msgspec.Struct):
    """The version of pyengine."""

    version: str


@dataclass(frozen=True)
class Operation:
    """What a path takes and gives.

    Attributes:
        summary: In a line.
        answer: The type of its answer, or a media type that is not JSON.
        request: The type of its body.
        parameters: OpenAPI's objects of its parameters.
        stream: The media type of an answer that comes in parts, if it may.
        error: The type of the body of its own errors.
        media: The media type of its body.
    """

    summary: str
    answer: Any
    request: Any = None
    parameters: tuple[dict[str, Any], ...] = ()
    stream: str | None = None
    error: Any = ErrorBody
    media: str = _JSON


def _query(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": schema}


def _id(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "pattern": "^[A-Za-z0-9_-]+$"}
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": "Its id.",
        "schema": schema,
    }


_LISTED = (
    _query("after", "The id behind which the list begins.", {"type": "string"}),
    _query("limit", "The most objects.", {"type": "integer", "minimum": 1, "maximum": 100}),
    _query("order", "The first added first, or last.", {"enum": ["asc", "desc"]}),
)

_MODEL_NAME = {
    "name": "model", "in": "path", "required": True, "description": "Name of a model.",
    "schema": {"type": "string", "minLength": 1},
}  # fmt: skip

GENERATING = (
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    MessagesRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaEmbedRequest,
    OllamaEmbeddingsRequest,
)
"""Requests that name the model that is to answer."""

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        "Answer a conversation.", ChatResponse, ChatRequest, stream=_EVENTS
    ),
    ("GET", "/v1/chat/completions"): Operation(
        "The stored completions.",
        ObjectList,
        parameters=(*_LISTED, _query("model", "Those of that model.", {"type": "string"})),
    ),
    ("GET", "/v1/chat/completions/{completion}"): Operation(
        "A stored completion.", ChatResponse, parameters=(_id("completion"),)
    ),
    ("POST", "/v1/chat/completions/{completion}"): Operation(
        "Change a stored completion's metadata.",
        ChatResponse,
        UpdateRequest,
        parameters=(_id("completion"),),
    ),
    ("DELETE", "/v1/chat/completions/{completion}"): Operation(
        "Remove a stored completion.", Deleted, parameters=(_id("completion"),)
    ),
    ("GET", "/v1/chat/completions/{completion}/messages"): Operation(
        "The messages that a stored completion answers.",
        ObjectList,
        parameters=(_id("completion"), *_LISTED),
    ),
    ("POST", "/v1/completions"): Operation(
        "Continue one prompt or several.", CompletionResponse, CompletionRequest, stream=_EVENTS
    ),
    ("POST", "/v1/responses"): Operation(
        "Answer in the form of OpenAI's Responses.",
        ResponseObject,
        ResponsesRequest,
        stream=_EVENTS,
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "Count the tokens of a response's prompt.", InputTokens, InputTokensRequest
    ),
    ("GET", "/v1/responses/{response}"): Operation(
        "A stored response, or the events of one in the background.",
        ResponseObject,
        parameters=(
            _id("response"),
            _query("stream", "As events.", {"type": "boolean"}),
            _query("starting_after", "The number before the first event.", {"type": "integer"}),
        ),
        stream=_EVENTS,
    ),
    ("DELETE", "/v1/responses/{response}"): Operation(
        "Remove a stored response.", Deleted, parameters=(_id("response"),)
    ),
    ("POST", "/v1/responses/{response}/cancel"): Operation(
        "End a background response.", ResponseObject, parameters=(_id("response"),)
    ),
    ("GET", "/v1/responses/{response}/input_items"): Operation(
        "The items of a stored response's input.",
        ObjectList,
        parameters=(_id("response"), *_LISTED),
    ),
    ("POST", "/v1/files"): Operation(
        "Store a file.", FileObject, Upload, media="multipart/form-data"
    ),
    ("GET", "/v1/files"): Operation(
        "The stored files.",
        ObjectList,
        parameters=(*_LISTED, _query("purpose", "Those of that purpose.", {"type": "string"})),
    ),
    ("GET", "/v1/files/{file}"): Operation("A file.", FileObject, parameters=(_id("file"),)),
    ("DELETE", "/v1/files/{file}"): Operation("Remove a file.", Deleted, parameters=(_id("file"),)),
    ("GET", "/v1/files/{file}/content"): Operation(
        "The content of a file.", "application/octet-stream", parameters=(_id("file"),)
    ),
    ("POST", "/v1/batches"): Operation(
        "Answer the requests of a file, when there is room.", BatchObject, BatchRequest
    ),
    ("GET", "/v1/batches"): Operation("The batches.", ObjectList, parameters=_LISTED),
    ("GET", "/v1/batches/{batch}"): Operation("A batch.", BatchObject, parameters=(_id("batch"),)),
    ("POST", "/v1/batches/{batch}/cancel"): Operation(
        "Answer no more of a batch's requests.", BatchObject, parameters=(_id("batch"),)
    ),
    ("POST", "/v1/messages"): Operation(
        "Answer in the form of Anthropic's Messages.",
        MessageAnswer,
        MessagesRequest,
        stream=_EVENTS,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Count the tokens of a conversation.", TokenCount, CountTokensRequest
    ),
    ("POST", "/v1/embeddings"): Operation(
        "The vectors of texts.", EmbeddingResponse, EmbeddingRequest
    ),
    ("POST", "/v1/rerank"): Operation(
        "Order documents by how well they answer a query.", RerankResponse, RerankRequest
    ),
    ("POST", "/v2/rerank"): Operation("As /v1/rerank.", RerankResponse, RerankRequest),
    ("POST", "/v1/score"): Operation("Score pairs of texts.", ScoreResponse, ScoreRequest),
    ("POST", "/api/embed"): Operation(
        "The vectors of texts, in Ollama's form.",
        OllamaEmbedAnswer,
        OllamaEmbedRequest,
        error=OllamaError,
    ),
    ("POST", "/api/embeddings"): Operation(
        "The vector of a text, in Ollama's older form.",
        OllamaEmbeddingsAnswer,
        OllamaEmbeddingsRequest,
        error=OllamaError,
    ),
    ("POST", "/api/chat"): Operation(
        "Answer a conversation in Ollama's form.",
        OllamaAnswer,
        OllamaChatRequest,
        stream=_LINES,
        error=OllamaError,
    ),
    ("POST", "/api/generate"): Operation(
        "Continue a prompt in Ollama's form.",
        OllamaAnswer,
        OllamaGenerateRequest,
        stream=_LINES,
        error=OllamaError,
    ),
    ("POST", "/api/show"): Operation(
        "The model, in Ollama's form.", dict[str, Any], OllamaShowRequest, error=OllamaError
    ),
    ("GET", "/api/tags"): Operation(
        "The models, in Ollama's form.", dict[str, Any], error=OllamaError
    ),
    ("GET", "/api/ps"): Operation(
        "The models that are loaded, in Ollama's form.", dict[str, Any], error=OllamaError
    ),
    ("GET", "/api/version"): Operation("The version of pyengine.", Version, error=OllamaError),
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
    ("GET", "/metrics"): Operation("Metrics for Prometheus.", "text/plain"),
    ("GET", "/debug/profile"): Operation(
        "Watch the engine, and answer where its time went.",
        dict[str, Any],
        None,
        (
            _query("seconds", "How long, at most 60.", {"type": "number", "maximum": 60}),
            _query("spans", "1 gives the spans too.", {"enum": ["0", "1"]}),
        ),
    ),
    ("GET", "/openapi.json"): Operation("This description.", dict[str, Any]),
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
"""Every path that the application has, but for the page at ``/``; a test compares them."""


@cache
def document(models: tuple[str, ...]) -> bytes:
    """The description of an endpoint with these names of its model, as JSON."""
    types = {op.request for op in OPERATIONS.values()} | {op.answer for op in OPERATIONS.values()}
    structs = [kind for kind in types if inspect.isclass(kind)]
    structs = [ErrorBody, OllamaError, *sorted(structs, key=lambda kind: kind.__name__)]
    references, schemas = msgspec.json.schema_components(
        structs, ref_template="#/components/schemas/{name}"
    )
    for kind in GENERATING:
        schemas[kind.__name__]["properties"]["model"] = {"enum": models}
    names = dict(zip(structs, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation, names)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "pyengine",
                "version": __version__,
                "description": "An endpoint that OpenAI's clients talk to.",
            },
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
            "security": [{}, {"bearer": []}, {"x-api-key": []}],
        }
    )


def _operation_id(method: str, path: str) -> str:
    name = path.strip("/").replace("/", "_").translate(str.maketrans("", "", "{}."))
    return f"{method.lower()}_{name}"


def _operation(
    method: str, path: str, operation: Operation, names: dict[Any, dict[str, Any]]
) -> dict[str, Any]:
    answer = operation.answer
    if isinstance(answer, str):
        content: dict[str, Any] = {answer: {"schema": {"type": "string"}}}
    else:
        content = {_JSON: {"schema": names.get(answer, {"type": "object"})}}
    if operation.stream == _EVENTS:
        content[_EVENTS] = {"schema": _EVENT}
    elif operation.stream is not None:
        content[operation.stream] = {"schema": {"type": "string"}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _operation_id(method, path),
        "responses": {"200": {"description": "The answer.", "content": content}},
    }
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.request is not None:
        described["requestBody"] = {
            "required": True,
            "content": {operation.media: {"schema": names[operation.request]}},
        }
    error = names[operation.error]
    for status in _OF_GET if method == "GET" else _ERRORS:
        described["responses"][str(status)] = {
            "description": _ERRORS[status],
            "content": {_JSON: {"schema": error}},
        }
    return described


async def openapi(exchange: "Exchange") -> None:
    """The description."""
    exchange.reply(document(exchange.service.engine.model_names))


async def docs(exchange: "Exchange") -> None:
    """The page."""
    exchange.reply(
        _PAGE.read_bytes(),
        200,
        ("content-security-policy", "default-src 'self' 'unsafe-inline'"),
        content_type="text/html; charset=utf-8",
    )
