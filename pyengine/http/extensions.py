"""Optional parts of the endpoint: the APIs of others, pages.

An extension is a folder that nothing imports: it is found by its name here, or, from a package
outside, by an entry point of the group ``pyengine.endpoints``. Its value is an :class:`Extension`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pkgutil import resolve_name

from pyengine.errors import PyengineError
from pyengine.http.fields.effects import Table
from pyengine.http.operations.operation import Operation
from pyengine.http.routing import Methods

ENTRY_POINTS = "pyengine.endpoints"
BUILT_IN = ("pyengine.http.ollama.extension:EXTENSION", "pyengine.http.page:EXTENSION")


@dataclass(frozen=True, kw_only=True)
class Extension:
    """The paths of one extension, and all that the endpoint has to know of them.

    Attributes:
        routes: Handlers by path and method.
        operations: The description of each method and path, but for pages.
        fields: Fields that its requests may have beside those that their types honour.
        error_forms: How errors look to its clients, by the beginning of their paths.
    """

    routes: Mapping[str, Methods]
    operations: Mapping[tuple[str, str], Operation] = field(default_factory=dict)
    fields: Table = field(default_factory=dict)
    error_forms: Mapping[str, Callable[[PyengineError], bytes]] = field(default_factory=dict)


@cache
def extensions() -> tuple[Extension, ...]:
    """The extensions of this installation."""
    outside = (entry.load() for entry in entry_points(group=ENTRY_POINTS))
    return (*map(resolve_name, BUILT_IN), *outside)
