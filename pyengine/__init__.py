"""pyengine: an asyncio actor-model LLM serving engine with its hot paths in Rust.

The public names, loaded when they are first used, so that importing the package is instant
and imports no torch. The functions that put grammars together are in :mod:`pyengine.grammar`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyengine.async_engine import AsyncEngine
    from pyengine.chat.answer import ChatAnswer, ChatUpdate, ToolCall, ToolCallDelta
    from pyengine.chat.generation import ChatGeneration
    from pyengine.chat.tools import Named, Tool
    from pyengine.completion import Completion, Update, Usage
    from pyengine.errors import (
        ConfigError,
        ContextLengthError,
        EngineDeadError,
        InvalidGrammarError,
        InvalidRequestError,
        ModelLoadError,
        NotReadyError,
        OverloadedError,
        PyengineError,
        RequestAbortedError,
        RequestFailedError,
        RequestTimeoutError,
        UnsupportedParameterError,
    )
    from pyengine.grammar import (
        Grammar,
        choice,
        ebnf,
        json_object,
        json_schema,
        lark,
        parse_answer,
        regex,
        structural_tag,
    )
    from pyengine.http.asgi import asgi_app
    from pyengine.logprobs import TokenLogprob, TopLogprob
    from pyengine.request.embedding import Classification, Embedding
    from pyengine.request.generation import Generation
    from pyengine.sampling import SamplingParams
    from pyengine.settings.config import EngineConfig
    from pyengine.sync_engine import Engine

__all__ = [
    "AsyncEngine",
    "ChatAnswer",
    "ChatGeneration",
    "ChatUpdate",
    "Classification",
    "Completion",
    "ConfigError",
    "ContextLengthError",
    "Embedding",
    "Engine",
    "EngineConfig",
    "EngineDeadError",
    "Generation",
    "Grammar",
    "InvalidGrammarError",
    "InvalidRequestError",
    "ModelLoadError",
    "Named",
    "NotReadyError",
    "OverloadedError",
    "PyengineError",
    "RequestAbortedError",
    "RequestFailedError",
    "RequestTimeoutError",
    "SamplingParams",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "TopLogprob",
    "UnsupportedParameterError",
    "Update",
    "Usage",
    "asgi_app",
    "choice",
    "ebnf",
    "json_object",
    "json_schema",
    "lark",
    "parse_answer",
    "regex",
    "structural_tag",
]

_MODULES = {
    "pyengine.http.asgi": ("asgi_app",),
    "pyengine.request.embedding": ("Classification", "Embedding"),
    "pyengine.request.generation": ("Generation",),
    "pyengine.async_engine": ("AsyncEngine",),
    "pyengine.sync_engine": ("Engine",),
    "pyengine.chat.answer": (
        "ChatAnswer",
        "ChatUpdate",
        "ToolCall",
        "ToolCallDelta",
    ),
    "pyengine.chat.generation": ("ChatGeneration",),
    "pyengine.chat.tools": (
        "Named",
        "Tool",
    ),
    "pyengine.completion": ("Completion", "Update", "Usage"),
    "pyengine.settings.config": ("EngineConfig",),
    "pyengine.errors": (
        "ConfigError",
        "ContextLengthError",
        "EngineDeadError",
        "InvalidGrammarError",
        "InvalidRequestError",
        "ModelLoadError",
        "NotReadyError",
        "OverloadedError",
        "PyengineError",
        "RequestAbortedError",
        "RequestFailedError",
        "RequestTimeoutError",
        "UnsupportedParameterError",
    ),
    "pyengine.grammar": (
        "Grammar",
        "choice",
        "ebnf",
        "json_object",
        "json_schema",
        "lark",
        "parse_answer",
        "regex",
        "structural_tag",
    ),
    "pyengine.logprobs": ("TokenLogprob", "TopLogprob"),
    "pyengine.sampling": ("SamplingParams",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("pyengine._core").__version__
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'pyengine' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
