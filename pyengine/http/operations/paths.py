"""Every path: who answers, what it takes, what it gives, and in which form."""

from functools import cache
from typing import Any

from pyengine.http.admin import adapters
from pyengine.http.admin import endpoints as admin
from pyengine.http.admin.adapters import AdapterState
from pyengine.http.admin.endpoints import RequestList, ResetAnswer, SleepState
from pyengine.http.anthropic import messages
from pyengine.http.anthropic.schema import (
    CountTokensRequest,
    MessageAnswer,
    MessagesRequest,
    TokenCount,
)
from pyengine.http.extensions import extensions
from pyengine.http.openai import batches, decisions, files, models, tokenize
from pyengine.http.openai.completions import chat, stored_chat, text
from pyengine.http.openai.completions.stored_chat import UpdateRequest
from pyengine.http.openai.models import Model, ModelList
from pyengine.http.openai.pooling import classify, embeddings, rerank
from pyengine.http.openai.responses import compact, conversations
from pyengine.http.openai.responses import create as responses
from pyengine.http.openai.responses import stored as stored_responses
from pyengine.http.openai.schema.batches import BatchObject, BatchRequest, FileObject
from pyengine.http.openai.schema.chat import ChatRequest, ChatResponse
from pyengine.http.openai.schema.completions import CompletionRequest, CompletionResponse
from pyengine.http.openai.schema.conversations import (
    CompactedResponse,
    CompactRequest,
    ConversationItems,
    ConversationObject,
    ConversationRequest,
)
from pyengine.http.openai.schema.decisions import DecisionObject, DecisionRequest
from pyengine.http.openai.schema.embeddings import (
    ClassifyRequest,
    ClassifyResponse,
    EmbeddingRequest,
    EmbeddingResponse,
)
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
from pyengine.http.operations import debug, health, metrics, openapi
from pyengine.http.operations.expert_families import MetricsQuery
from pyengine.http.operations.operation import EVENTS, Operation, Paths, Status, Version
from pyengine.http.query import Deleted, ListQuery, ObjectList
from pyengine.http.routing import Routes

_CHAT = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 50}
_PATHS: Paths = {
    "/v1/chat/completions": {
        "POST": Operation(chat.create, ChatResponse, ChatRequest, stream=EVENTS, example=_CHAT),
        "GET": Operation(stored_chat.list_all, ObjectList, query=stored_chat.ChatListQuery),
    },
    "/v1/chat/completions/{completion}": {
        "GET": Operation(stored_chat.retrieve, ChatResponse),
        "POST": Operation(stored_chat.update, ChatResponse, UpdateRequest),
        "DELETE": Operation(stored_chat.delete, Deleted),
    },
    "/v1/chat/completions/{completion}/messages": {
        "GET": Operation(stored_chat.list_messages, ObjectList, query=stored_chat.MessagesQuery)
    },
    "/v1/completions": {
        "POST": Operation(
            text.create,
            CompletionResponse,
            CompletionRequest,
            stream=EVENTS,
            example={"prompt": "Once upon a time", "max_tokens": 20},
        )
    },
    "/v1/responses": {
        "POST": Operation(
            responses.create,
            ResponseObject,
            ResponsesRequest,
            stream=EVENTS,
            example={"input": "Who are you?", "max_output_tokens": 50},
        )
    },
    "/v1/responses/input_tokens": {
        "POST": Operation(responses.count_input_tokens, InputTokens, InputTokensRequest)
    },
    "/v1/responses/compact": {
        "POST": Operation(compact.compact, CompactedResponse, CompactRequest)
    },
    "/v1/responses/{response}": {
        "GET": Operation(
            stored_responses.retrieve,
            ResponseObject,
            query=stored_responses.RetrieveQuery,
            stream=EVENTS,
        ),
        "DELETE": Operation(stored_responses.delete, Deleted),
    },
    "/v1/responses/{response}/cancel": {"POST": Operation(stored_responses.cancel, ResponseObject)},
    "/v1/responses/{response}/input_items": {
        "GET": Operation(
            stored_responses.list_input_items, ObjectList, query=stored_responses.ItemsQuery
        )
    },
    "/v1/conversations": {
        "POST": Operation(conversations.create, ConversationObject, ConversationRequest)
    },
    "/v1/conversations/{conversation}": {
        "GET": Operation(conversations.retrieve, ConversationObject),
        "POST": Operation(conversations.update, ConversationObject, UpdateRequest),
        "DELETE": Operation(conversations.delete, Deleted),
    },
    "/v1/conversations/{conversation}/items": {
        "POST": Operation(conversations.add_items, ObjectList, ConversationItems),
        "GET": Operation(conversations.list_items, ObjectList, query=stored_responses.ItemsQuery),
    },
    "/v1/conversations/{conversation}/items/{item}": {
        "GET": Operation(conversations.retrieve_item, dict[str, Any]),
        "DELETE": Operation(conversations.delete_item, ConversationObject),
    },
    "/v1/files": {
        "POST": Operation(files.upload, FileObject, files.Upload, media="multipart/form-data"),
        "GET": Operation(files.list_all, ObjectList, query=files.FilesQuery),
    },
    "/v1/files/{file}": {
        "GET": Operation(files.retrieve, FileObject),
        "DELETE": Operation(files.delete, Deleted),
    },
    "/v1/files/{file}/content": {"GET": Operation(files.content, "application/octet-stream")},
    "/v1/batches": {
        "POST": Operation(batches.create, BatchObject, BatchRequest),
        "GET": Operation(batches.list_all, ObjectList, query=ListQuery),
    },
    "/v1/batches/{batch}": {"GET": Operation(batches.retrieve, BatchObject)},
    "/v1/batches/{batch}/cancel": {"POST": Operation(batches.cancel, BatchObject)},
    "/v1/messages": {
        "POST": Operation(
            messages.create, MessageAnswer, MessagesRequest, stream=EVENTS, example=_CHAT
        )
    },
    "/v1/messages/count_tokens": {
        "POST": Operation(messages.count_tokens, TokenCount, CountTokensRequest)
    },
    "/v1/embeddings": {
        "POST": Operation(
            embeddings.create,
            EmbeddingResponse,
            EmbeddingRequest,
            example={"input": ["A text.", "Another."]},
        )
    },
    "/v1/classify": {"POST": Operation(classify.classify, ClassifyResponse, ClassifyRequest)},
    "/v1/rerank": {
        "POST": Operation(
            rerank.rerank,
            RerankResponse,
            RerankRequest,
            example={"query": "bread", "documents": ["How to bake.", "Paris."]},
        )
    },
    "/v2/rerank": {"POST": Operation(rerank.rerank, RerankResponse, RerankRequest)},
    "/v1/score": {"POST": Operation(rerank.score, ScoreResponse, ScoreRequest)},
    "/v1/decisions": {
        "POST": Operation(
            decisions.create,
            DecisionObject,
            DecisionRequest,
            example={
                "input": "I was charged twice!",
                "questions": [{"type": "predicate", "instructions": "The client is angry."}],
            },
        )
    },
    "/tokenize": {"POST": Operation(tokenize.tokenize, TokenizeAnswer, TokenizeRequest)},
    "/detokenize": {"POST": Operation(tokenize.detokenize, DetokenizeAnswer, DetokenizeRequest)},
    "/apply-template": {
        "POST": Operation(tokenize.apply_template, ApplyTemplateAnswer, ApplyTemplateRequest)
    },
    "/v1/models": {"GET": Operation(models.list_all, ModelList)},
    "/v1/models/{model}": {"GET": Operation(models.retrieve, Model)},
    "/health": {"GET": Operation(health.health, Status)},
    "/ping": {"GET": Operation(health.health, Status)},
    "/ready": {"GET": Operation(health.ready, Status)},
    "/version": {"GET": Operation(health.version, Version)},
    "/metrics": {"GET": Operation(metrics.metrics, "text/plain", query=MetricsQuery)},
    "/openapi.json": {"GET": Operation(openapi.openapi, dict[str, Any])},
    "/docs": {"GET": Operation(openapi.docs, "text/html")},
    "/debug/profile": {"GET": Operation(debug.profile, dict[str, Any], query=debug.ProfileQuery)},
    "/debug/record": {"GET": Operation(debug.record, dict[str, Any], query=debug.RecordQuery)},
    "/v1/load_lora_adapter": {
        "POST": Operation(adapters.load, AdapterState, adapters.LoadLoraAdapter)
    },
    "/v1/unload_lora_adapter": {
        "POST": Operation(adapters.unload, AdapterState, adapters.UnloadLoraAdapter)
    },
    "/admin/requests": {"GET": Operation(admin.list_requests, RequestList)},
    "/admin/abort_request": {
        "POST": Operation(admin.abort_request, RequestList, admin.AbortRequest)
    },
    "/admin/reset_prefix_cache": {"POST": Operation(admin.reset_prefix_cache, ResetAnswer)},
    "/admin/sleep": {"POST": Operation(admin.sleep, SleepState)},
    "/admin/wake_up": {"POST": Operation(admin.wake_up, SleepState)},
    "/admin/is_sleeping": {"GET": Operation(admin.is_sleeping, SleepState)},
}


@cache
def operations() -> Paths:
    """Every operation by path and method, also of extensions."""
    found = dict(_PATHS)
    for extension in extensions():
        found.update(extension.paths)
    return found


@cache
def routes() -> Routes:
    """Finds the operation of a request's path."""
    return Routes(operations())
