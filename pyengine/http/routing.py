"""From the path of a request to its handlers: by itself, or by a template such as
``/v1/responses/{response}``.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches

from pyengine.http.operations.operation import Operation, Paths

_PARAMETER = re.compile(r"\{(\w+)\}")


class Routes:
    """All paths and their handlers. Immutable.

    A path under ``/v1`` is also known without that. Segments of a template may be parameters,
    ``{model}`` of any number of segments: names of hubs have slashes in them.
    """

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._templates = [
            (_pattern(path), methods) for path, methods in paths.items() if "{" in path
        ]

    def find(self, path: str) -> tuple[Mapping[str, Operation], tuple[str, ...]] | None:
        """A path's operations by method, and its parameters; None: there is no such path."""
        methods = self.paths.get(path) or self.paths.get(f"/v1{path}")
        if methods is not None and "{" not in path:
            return methods, ()
        for pattern, found in self._templates:
            if (match := pattern.fullmatch(path)) is not None:
                return found, match.groups()
        return None

    def meant(self, path: str) -> str:
        """A hint for an unknown path: the route that it may mean, or where all of them are."""
        path = path.rstrip("/")
        for route in self.paths:
            if path and (route.endswith(path) or path.endswith(route)):
                base = " OpenAI's clients take a base_url that ends in /v1."
                return f"did you mean {route}?{base if '/v1/' in route else ''}"
        routes = {route.removeprefix("/v1"): route for route in self.paths}
        near = get_close_matches(path.removeprefix("/v1"), routes, 1, 0.8)
        return f"did you mean {routes[near[0]]}?" if near else "/docs shows what there is."


def _pattern(template: str) -> re.Pattern[str]:
    def parameter(name: re.Match[str]) -> str:
        return "(.+)" if name[1] == "model" else "([^/]+)"

    return re.compile("(?:/v1)?" + _PARAMETER.sub(parameter, template.removeprefix("/v1")))
