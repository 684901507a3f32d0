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
from pyengine.http.operations.operation import LINES, Operation, Version


class OllamaError(msgspec.Struct):
    """The body of every error, in Ollama's form."""

    error: str


EXTENSION = Extension(
    routes={
        "/api/chat": {"POST": endpoints.chat},
        "/api/generate": {"POST": endpoints.generate},
        "/api/embed": {"POST": embeddings.embed},
        "/api/embeddings": {"POST": embeddings.embeddings},
        "/api/show": {"POST": endpoints.show},
        "/api/pull": {"POST": endpoints.pull},
        "/api/tags": {"GET": endpoints.tags},
        "/api/ps": {"GET": endpoints.running},
        "/api/version": {"GET": endpoints.version},
    },
    operations={
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
            stream=LINES,
            error=OllamaError,
        ),
        ("POST", "/api/generate"): Operation(
            "Continue a prompt in Ollama's form.",
            OllamaAnswer,
            OllamaGenerateRequest,
            stream=LINES,
            error=OllamaError,
        ),
        ("POST", "/api/show"): Operation(
            "The model, in Ollama's form.", dict[str, Any], OllamaShowRequest, error=OllamaError
        ),
        ("POST", "/api/pull"): Operation(
            "Say that the model is there, in Ollama's form.",
            OllamaPullAnswer,
            OllamaPullRequest,
            stream=LINES,
            error=OllamaError,
        ),
        ("GET", "/api/tags"): Operation(
            "The models, in Ollama's form.", dict[str, Any], error=OllamaError
        ),
        ("GET", "/api/ps"): Operation(
            "The models that are loaded, in Ollama's form.", dict[str, Any], error=OllamaError
        ),
        ("GET", "/api/version"): Operation(
            "The version of Ollama that this API is of.", Version, error=OllamaError
        ),
    },
    fields=FIELDS,
    error_forms={"/api/": answer.error_body},
)
