"""Every body that a server sends, held against OpenAI's specification and the server's own.

A :class:`Checked` transport lies between a test's client and the server. It keeps what comes, and
:meth:`Bodies.check` validates all of it when the test is over: errors, whole answers, and each
event of a stream. Objects of OpenAI's are closed, so that a field which is neither theirs nor among
:data:`BEYOND` is found too; what has no place in their specification is held against the
description that the server gives of itself.
"""

import copy
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any

import httpx
import jsonschema_rs

from pyengine.http.operations.openapi import document
from pyengine.http.operations.paths import routes
from tests.reference import openapi

BEYOND = frozenset(
    """
    warnings reasoning_content max_model_len default_sampling_params prompt_logprobs
    prompt_token_ids token_ids obfuscation
    """.split()
)
"""Fields of the answers that are not OpenAI's: those of other servers, and warnings."""

CHAT, STREAMED_CHAT = "CreateChatCompletionResponse", "CreateChatCompletionStreamResponse"
# Not in the specification; :func:`_complete` makes them.
STREAMED_TEXT, STORED_CHAT = "CreateCompletionStreamResponse", "StoredChatCompletion"
# What a stored completion says of its request.
_ASKED = """
    request_id input_user temperature top_p seed presence_penalty frequency_penalty tools
    tool_choice response_format
    """
# Whole and streamed, by method and path.
SCHEMAS: dict[tuple[str, str], tuple[str, str | None]] = {
    ("POST", "/v1/chat/completions"): (CHAT, STREAMED_CHAT),
    ("GET", "/v1/chat/completions/{}"): (STORED_CHAT, None),
    ("POST", "/v1/chat/completions/{}"): (STORED_CHAT, None),
    ("POST", "/v1/completions"): ("CreateCompletionResponse", STREAMED_TEXT),
    ("POST", "/v1/embeddings"): ("CreateEmbeddingResponse", None),
    ("POST", "/v1/responses"): ("Response", "ResponseStreamEvent"),
    ("GET", "/v1/responses/{}"): ("Response", "ResponseStreamEvent"),
    ("POST", "/v1/responses/{}/cancel"): ("Response", None),
    ("GET", "/v1/responses/{}/input_items"): ("ResponseItemList", None),
    ("GET", "/v1/models"): ("ListModelsResponse", None),
    ("GET", "/v1/models/{}"): ("Model", None),
}
_EVENTS = "text/event-stream"
# Anthropic's and Ollama's have errors of their own.
_OTHERS = re.compile("(/v1)?/messages|/api/")


class Bodies:
    """What a server has sent.

    Attributes:
        seen: How many bodies of each schema were checked, events by their types' schemas.
        events: The types of events among them.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.events: set[str] = set()
        self._kept: list[tuple[str, str, int, str, bytes]] = []

    def keep(self, request: httpx.Request, response: httpx.Response, body: bytes) -> None:
        """Remember a body, to be checked when the test is over."""
        media = response.headers.get("content-type", "").partition(";")[0]
        self._kept.append((request.method, request.url.path, response.status_code, media, body))

    def check(self) -> None:
        """Validate what came since the last time.

        Raises:
            AssertionError: Naming the schema and the place.
        """
        kept, self._kept = self._kept, []
        for method, path, status, media, body in kept:
            for schema, value in _values(method, path, status, media, body):
                self.seen[schema] += 1
                if media == _EVENTS and "type" in value:
                    self.events.add(value["type"])
                for error in _validator(schema).iter_errors(value):
                    at = "".join(f"[{step!r}]" for step in error.instance_path)
                    raise AssertionError(f"{method} {path}: {schema}{at}: {error.message[:600]}")


class Checked(httpx.AsyncBaseTransport):
    """A transport whose answers are kept in ``bodies``."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Kept(response.stream, self._bodies, request, response)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Kept(httpx.AsyncByteStream):
    def __init__(
        self,
        stream: httpx.AsyncByteStream,
        bodies: Bodies,
        request: httpx.Request,
        response: httpx.Response,
    ) -> None:
        self._stream, self._bodies = stream, bodies
        self._request, self._response = request, response
        self._parts: list[bytes] = []

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            self._parts.append(part)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._bodies.keep(self._request, self._response, b"".join(self._parts))


def _values(
    method: str, path: str, status: int, media: str, body: bytes
) -> Iterator[tuple[str, Any]]:
    """The schemas of what a body holds, each with its value."""
    theirs = _OTHERS.match(path) is not None
    if media == _EVENTS and not theirs:
        streamed = SCHEMAS[method, _template(path)][1]
        assert streamed is not None, f"{path} has a stream"
        *events, _cut = body.decode(errors="replace").split("\n\n")
        for event in events:
            data = event.rpartition("data: ")[2]
            if event.startswith(":") or data == "[DONE]":
                continue
            yield _of_event(streamed, json.loads(data))
    elif media == "application/json" and body:
        value = json.loads(body)
        if status >= 400 and not theirs:
            yield "ErrorResponse", value
        elif status < 400 and (method, _template(path)) in SCHEMAS:
            yield SCHEMAS[method, _template(path)][0], value
        elif (own := _own_schema(method, path, status)) is not None:
            yield own, value
            if _template(path) == "/v1/chat/completions":  # those that are stored
                yield from ((STORED_CHAT, each) for each in value["data"])


def _of_event(schema: str, value: Any) -> tuple[str, Any]:
    """The schema of a stream's event: an error's in place of a chunk's, or that of its type."""
    if schema == "ResponseStreamEvent":
        assert value["type"] in _events(), f"no event {value['type']} in the specification"
        return _events()[value["type"]], value
    return ("ErrorResponse" if "error" in value else schema), value


def _template(path: str) -> str:
    """The path with ``{}`` for an id; names of models may have slashes."""
    if path.startswith("/v1/models/"):
        return "/v1/models/{}"
    return re.sub(r"/(chatcmpl|resp|file|batch)[_-][^/]+", "/{}", path)


@cache
def _events() -> dict[str, str]:
    schemas = openapi()["components"]["schemas"]
    names = [each["$ref"].rsplit("/", 1)[1] for each in schemas["ResponseStreamEvent"]["anyOf"]]
    return {schemas[name]["properties"]["type"]["enum"][0]: name for name in names}


@cache
def _own() -> dict[str, Any]:
    described: dict[str, Any] = json.loads(document(routes(), ("org/fake",)))
    return described


def _own_schema(method: str, path: str, status: int) -> str | None:
    """The pointer into the server's own description, where that has one."""
    for known, operations in _own()["paths"].items():
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(known))
        if method.lower() in operations and re.fullmatch(pattern, path):
            described = operations[method.lower()]["responses"].get(str(status), {})
            schema = described.get("content", {}).get("application/json", {}).get("schema", {})
            reference: str | None = schema.get("$ref")
            return reference
    return None


@cache
def _validator(schema: str) -> Any:
    if schema.startswith("#"):
        document = {"$ref": schema, "components": _own()["components"]}
    else:
        document = {"$ref": f"#/components/schemas/{schema}", "components": _closed()}
    return jsonschema_rs.validator_for(document)


@cache
def _closed() -> dict[str, Any]:
    """OpenAI's schemas, in which objects have no other fields than their own and BEYOND."""
    schemas = openapi()["components"]["schemas"]
    _complete(schemas)
    return {"schemas": {name: _close(schemas, schema) for name, schema in schemas.items()}}


def _complete(schemas: dict[str, Any]) -> None:
    """Add what the specification says in words only, or in its examples."""
    # A chunk of text has "the shape" of a whole answer; what comes last is null before.
    text = schemas[STREAMED_TEXT] = copy.deepcopy(schemas["CreateCompletionResponse"])
    text["properties"]["choices"]["items"]["properties"]["finish_reason"]["nullable"] = True
    text["properties"]["usage"] = {"anyOf": [text["properties"]["usage"], {"type": "null"}]}
    for made in (
        text,
        schemas["CreateCompletionResponse"],
    ):  # before a prompt's first token is none
        entries = made["properties"]["choices"]["items"]["properties"]["logprobs"]["anyOf"][0]
        for name in ("token_logprobs", "top_logprobs"):
            entries["properties"][name]["items"]["nullable"] = True
    # Custom tools are in whole answers alone.
    chunk = schemas["ChatCompletionMessageToolCallChunk"]["properties"]
    chunk["type"]["enum"] = ["function", "custom"]
    chunk["custom"] = {"type": "object", "properties": {"name": {}, "input": {}}}
    stored = schemas[STORED_CHAT] = copy.deepcopy(schemas[CHAT])
    stored["properties"] |= {name: {} for name in _ASKED.split()}
    stored["required"] = [*stored["required"], "metadata", *_ASKED.split()]
    # With an encoding_format of base64.
    vector = schemas["Embedding"]["properties"]
    vector["embedding"] = {"anyOf": [vector["embedding"], {"type": "string"}]}


def _close(schemas: dict[str, Any], schema: Any) -> Any:
    if isinstance(schema, list):
        return [_close(schemas, each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "allOf" in schema:
        schema = _merged(schemas, schema)
    if schema.get("nullable"):
        rest = {key: value for key, value in schema.items() if key != "nullable"}
        # As OpenAPI 3.0 wrote it.
        return {"anyOf": [_close(schemas, rest), {"type": "null"}]}
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            made[key] = {name: _close(schemas, each) for name, each in value.items()}
        elif key not in ("enum", "const", "default", "example", "examples"):
            made[key] = _close(schemas, value)
        elif key in ("enum", "const"):
            made[key] = value
    if made.get("properties") and "additionalProperties" not in made:
        made["additionalProperties"] = False
        made["patternProperties"] = {f"^({'|'.join(sorted(BEYOND))})$": {}}
    return made


def _merged(schemas: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """An object that is put together of several, as one; what is no object stays as it is."""
    parts = []
    for part in schema["allOf"]:
        while "$ref" in part:
            part = schemas[part["$ref"].rsplit("/", 1)[1]]
        parts.append(_merged(schemas, part) if "allOf" in part else part)
    if not all("properties" in part for part in parts):
        return {key: value for key, value in schema.items() if key != "discriminator"}
    made = {**schema, "properties": dict(schema.get("properties", {}))}
    del made["allOf"]
    for part in parts:
        made["properties"] |= part["properties"]
        made["required"] = [*made.get("required", []), *part.get("required", [])]
    made["required"] = sorted(set(made.get("required", [])))
    return made
