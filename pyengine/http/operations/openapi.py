"""``GET /openapi.json``: the endpoint's description in OpenAPI 3.1, made of the types that decode
requests and encode answers. ``GET /docs``: a page that shows it.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine._core import __version__
from pyengine.http.operations.meanings import Meanings, documented, structs_within
from pyengine.http.operations.operation import EVENTS, JSON, Operation
from pyengine.http.routing import Routes

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_PAGE = Path(__file__).with_name("docs.html")

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


@cache
def document(routes: Routes, models: tuple[str, ...]) -> bytes:
    """The description of an endpoint with these names of its model, as JSON."""
    described = [op for methods in routes.paths.values() for op in methods.values()]
    types = {kind for op in described for kind in (op.request, op.answer, op.error)}
    structs = [kind for kind in types if inspect.isclass(kind)]
    structs.sort(key=lambda kind: kind.__name__)
    references, schemas = msgspec.json.schema_components(
        structs, ref_template="#/components/schemas/{name}"
    )
    _describe(schemas, described, models)
    names = dict(zip(structs, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for path, methods in routes.paths.items():
        made = {each.lower(): _operation(each, path, op, names) for each, op in methods.items()}
        paths[path] = made
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


def _describe(
    schemas: dict[str, Any], described: Iterable[Operation], models: tuple[str, ...]
) -> None:
    """Say what the fields of requests mean, and which models there are."""
    requests = [op.request for op in described if op.request is not None]
    meanings = Meanings(requests)
    for request in requests:
        if "model" in request.__struct_fields__:
            schemas[request.__name__]["properties"]["model"] = {"enum": models}
        for kind in structs_within(request):
            for name, schema in schemas[kind.__name__].get("properties", {}).items():
                if (text := meanings.of(kind, name)) is not None:
                    schema["description"] = text


def _operation_id(method: str, path: str) -> str:
    name = path.strip("/").replace("/", "_").translate(str.maketrans("", "", "{}."))
    return f"{method.lower()}_{name}"


def _in_path(path: str) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", path):
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if name != "model":
            schema["pattern"] = "^[A-Za-z0-9_-]+$"
        said = {"required": True, "description": f"The {name}'s id.", "schema": schema}
        yield {"name": name, "in": "path", **said}


def _in_query(kind: Any) -> Iterator[dict[str, Any]]:
    """The parameters that the type of a query has; one that is left out is no null."""
    if kind is None:
        return
    _, schemas = msgspec.json.schema_components([kind])
    for name, schema in schemas[kind.__name__]["properties"].items():
        given = [each for each in schema.pop("anyOf", ()) if each["type"] != "null"]
        schema |= given[0] if given else {}
        if schema.pop("default", None) is not None and name == "limit":
            schema |= {"minimum": 1, "maximum": kind.most}
        said = {"description": documented(kind).get(name, f"The {name}."), "schema": schema}
        form = {"style": "deepObject"} if schema.get("type") == "object" else {}
        yield {"name": name, "in": "query", **said, **form}


def _operation(
    method: str, path: str, operation: Operation, names: dict[Any, dict[str, Any]]
) -> dict[str, Any]:
    answer = operation.answer
    if isinstance(answer, str):
        content: dict[str, Any] = {answer: {"schema": {"type": "string"}}}
    else:
        content = {JSON: {"schema": names.get(answer, {"type": "object"})}}
    if operation.stream == EVENTS:
        content[EVENTS] = {"schema": _EVENT}
    elif operation.stream is not None:
        content[operation.stream] = {"schema": {"type": "string"}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _operation_id(method, path),
        "responses": {"200": {"description": "The answer.", "content": content}},
    }
    if parameters := [*_in_path(path), *_in_query(operation.query)]:
        described["parameters"] = parameters
    if operation.request is not None:
        body = {"schema": names[operation.request]}
        if operation.example is not None:
            body["example"] = operation.example
        described["requestBody"] = {"required": True, "content": {operation.media: body}}
    error = names[operation.error]
    for status in _OF_GET if method == "GET" else _ERRORS:
        described["responses"][str(status)] = {
            "description": _ERRORS[status],
            "content": {JSON: {"schema": error}},
        }
    return described


async def openapi(exchange: "Exchange") -> None:
    """This description of the endpoint."""
    exchange.reply(document(exchange.service.routes, exchange.service.engine.model_names))


async def docs(exchange: "Exchange") -> None:
    """This description, for people."""
    exchange.reply(
        _PAGE.read_bytes(),
        200,
        ("content-security-policy", "default-src 'self' 'unsafe-inline'; img-src data:"),
        content_type="text/html; charset=utf-8",
    )
