"""Ollama's API as an extension of the endpoint."""

from typing import Any

import msgspec

from pyengine.http.extensions import Extension
from pyengine.http.ollama import answer, embeddings, endpoints
from pyengine.http.ollama.fields import FIELDS
from pyengine.http.ollama.schema import (
    OllamaAnswer,
    OllamaChatRequest,
    OllamaEmbedAnswer,
    OllamaEmbeddingsAnswer,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaPullAnswer,
    OllamaPullRequest,
    OllamaShowRequest,
)
from pyengine.http.operations.operation import LINES, Handler, Operation, Version


class OllamaError(msgspec.Struct):
    """The body of every error, in Ollama's form."""

    error: str


def _of(handler: Handler, answer: Any, request: Any = None, *, stream: bool = False) -> Operation:
    return Operation(handler, answer, request, stream=LINES if stream else None, error=OllamaError)


_ANY = dict[str, Any]
EXTENSION = Extension(
    paths={
        "/api/chat": {"POST": _of(endpoints.chat, OllamaAnswer, OllamaChatRequest, stream=True)},
        "/api/generate": {
            "POST": _of(endpoints.generate, OllamaAnswer, OllamaGenerateRequest, stream=True)
        },
        "/api/embed": {"POST": _of(embeddings.embed, OllamaEmbedAnswer, OllamaEmbedRequest)},
        "/api/embeddings": {
            "POST": _of(embeddings.embeddings, OllamaEmbeddingsAnswer, OllamaEmbeddingsRequest)
        },
        "/api/show": {"POST": _of(endpoints.show, _ANY, OllamaShowRequest)},
        "/api/pull": {
            "POST": _of(endpoints.pull, OllamaPullAnswer, OllamaPullRequest, stream=True)
        },
        "/api/tags": {"GET": _of(endpoints.tags, _ANY)},
        "/api/ps": {"GET": _of(endpoints.running, _ANY)},
        "/api/version": {"GET": _of(endpoints.version, Version)},
    },
    fields=FIELDS,
    error_forms={"/api/": answer.error_body},
)
