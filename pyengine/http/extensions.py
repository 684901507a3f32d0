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
from pyengine.http.operations.operation import Paths

ENTRY_POINTS = "pyengine.endpoints"
BUILT_IN = ("pyengine.http.ollama.extension:EXTENSION", "pyengine.http.page:EXTENSION")


@dataclass(frozen=True, kw_only=True)
class Extension:
    """The paths of one extension, and all that the endpoint has to know of them.

    Attributes:
        paths: Its operations by path and method.
        fields: Fields that its requests may have beside those that their types honour.
        error_forms: How errors look to its clients, by the beginning of their paths.
    """

    paths: Paths
    fields: Table = field(default_factory=dict)
    error_forms: Mapping[str, Callable[[PyengineError], bytes]] = field(default_factory=dict)


@cache
def extensions() -> tuple[Extension, ...]:
    """The extensions of this installation."""
    outside = (entry.load() for entry in entry_points(group=ENTRY_POINTS))
    return (*map(resolve_name, BUILT_IN), *outside)
