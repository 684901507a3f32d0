"""pyengine: an asyncio actor-model LLM serving engine with its hot paths in Rust.

The public names, loaded when they are first used, so that importing the package is instant
and imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyengine.async_engine import AsyncEngine
    from pyengine.config import EngineConfig
    from pyengine.errors import PyengineError
    from pyengine.sampling import SamplingParams
    from pyengine.sync_engine import Engine

__all__ = ["AsyncEngine", "Engine", "EngineConfig", "PyengineError", "SamplingParams"]

_HOMES = {
    "AsyncEngine": "pyengine.async_engine",
    "Engine": "pyengine.sync_engine",
    "EngineConfig": "pyengine.config",
    "PyengineError": "pyengine.errors",
    "SamplingParams": "pyengine.sampling",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("pyengine._core").__version__
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'pyengine' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
