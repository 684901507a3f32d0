"""The endpoints of an engine in its own process, as OpenAI's client spells them.

:mod:`pyengine.library` has them, above the HTTP layer. It is loaded when one is first asked, so
that an engine embedded in a service comes without that layer.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

P = ParamSpec("P")
R = TypeVar("R")


class Endpoint(Protocol):
    """An endpoint of the engine's, asked in the process."""

    def create(self, **fields: Any) -> Any:
        """The answer to a request with these fields; with ``stream=True`` a stream of its chunks.

        To be awaited on an :class:`~pyengine.AsyncEngine`. ``extra_body`` holds further fields.

        Raises:
            PyengineError: As the endpoint answers with: a field is unknown or out of its range,
                the engine is full, and so on.
        """


class Endpoints(Protocol):
    """The endpoints of one engine."""

    def endpoint(self, name: str) -> Any:
        """Returns the endpoint that OpenAI's client calls ``name``."""

    async def close(self) -> None:
        """Forget what was stored. Idempotent."""


def load_endpoints(engine: object) -> Endpoints:
    """Loads the HTTP layer, and returns the endpoints of an engine."""
    return cast("Endpoints", import_module("pyengine.library.namespaces").LocalEndpoints(engine))


class Namespace:
    """``engine.completions`` and the like: ``create(...)``, as OpenAI's client spells it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, engine: Any, owner: type) -> Endpoint:
        found: Endpoint = engine.endpoint(self._name)
        return found


class Method(Generic[P, R]):
    """``engine.chat``: called as the method is, and the namespace of ``completions``."""

    def __init__(self, call: Callable[P, R], completions: Callable[[], Endpoint]) -> None:
        self._call = call
        self._completions = completions

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """See the method of the engine."""
        return self._call(*args, **kwargs)

    @property
    def completions(self) -> Endpoint:
        """``chat.completions.create(...)``, as OpenAI's client spells it."""
        return self._completions()


class with_completions(Generic[P, R]):  # noqa: N801 - a decorator
    """Makes ``chat`` of an engine the namespace of ``completions``, too."""

    def __init__(self, method: Callable[Concatenate[Any, P], R]) -> None:
        self._method = method

    @overload
    def __get__(self, engine: None, owner: type) -> Callable[Concatenate[Any, P], R]: ...
    @overload
    def __get__(self, engine: Any, owner: type) -> Method[P, R]: ...
    def __get__(self, engine: Any, owner: type) -> Method[P, R] | Callable[Concatenate[Any, P], R]:
        if engine is None:
            return self._method
        completions = partial(engine.endpoint, "chat.completions")
        return Method(partial(self._method, engine), completions)
