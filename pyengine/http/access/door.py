"""The door: every request passes it before anything is read of its body.

::

    Host ──► Origin (CORS) ──► key ──► Content-Type ──► rate ──► endpoint
     403        403          401, 403       415          429

Host and Origin keep out web pages that a browser on this machine has open. A page can send a local
server requests without asking only in the few content types of HTML forms, so JSON is insisted on
of browsers, which say an Origin or how they fetch; other clients may say what they like. A page can
read answers only if its own name leads to the server, which the Host header tells.
"""

import hmac
import math
import re

from pyengine.errors import InvalidRequestError
from pyengine.http.access.keys import ApiKey, KeyRing, digest_of
from pyengine.http.access.rates import Rates
from pyengine.http.access.rules import AccessRules, is_loopback
from pyengine.http.errors import (
    AuthenticationError,
    ForbiddenError,
    RateLimitError,
    UnsupportedMediaError,
)
from pyengine.http.rsgi import Headers, Scope

OPEN_PATHS = frozenset({"/", "/health", "/ready", "/ping", "/version", "/docs", "/openapi.json"})
"""Paths that need no key; every other path does."""

FORM_PATHS = frozenset({"/v1/files", "/files"})
"""Paths whose bodies are forms; pages of other origins, which could send one, are refused."""

# What a request that reads the store counts as in its key's rate: clients ask for batches and
# background responses again and again.
_WEIGHT_OF_READS = 0.1
# Reading these costs next to nothing, and does not count.
_UNCOUNTED = ("/v1/models", "/models", "/metrics", "/debug", "/admin")

# The name of a deployment says nothing: the model is in the body.
_AZURE = re.compile(
    r"^/openai(/v1(?=/)|/deployments/.+?(?=/(chat/completions|completions|embeddings)$)|(?=/))"
)

MAX_AGE_S = 600
"""How long a browser remembers what an origin may do."""

_EXPOSED = "x-request-id, x-pyengine-cost, x-pyengine-warnings, retry-after, server-timing"


class Door:
    """Lets requests in, or raises. Used on the serving loop.

    Attributes:
        rules: The permissions of each key; replaced when keys change.
    """

    def __init__(self, rules: AccessRules | None = None, rates: Rates | None = None) -> None:
        self._rates = rates or Rates.make()
        self.apply(rules or AccessRules())

    def apply(self, rules: AccessRules) -> None:
        """Go by ``rules`` from now on."""
        self.rules = rules
        self._ring = KeyRing(rules.keys or ())

    def path(self, path: str) -> str:
        """``path`` without the root path and a trailing slash; Azure's paths as OpenAI's."""
        root = self.rules.root_path
        if root and (path == root or path.startswith(root + "/")):
            path = path[len(root) :]
        if path.startswith("/openai/"):
            path = _AZURE.sub("/v1", path)
        return path.rstrip("/") or "/"

    def cors(self, scope: Scope) -> list[tuple[str, str]]:
        """Check Host and Origin; the headers that an allowed origin's answer needs.

        Raises:
            ForbiddenError: The request comes from a web page that may not use the server.
            InvalidRequestError: Its head is not that of one request.
        """
        headers = scope.headers
        _check_head(scope)
        host = scope.authority or headers.get("host") or ""
        self._check_host(host)
        origin = headers.get("origin")
        if origin is None:
            return []
        if "*" in self.rules.origins:
            return _cors_headers("*")
        if origin.lower() in self.rules.origins:
            return [*_cors_headers(origin), ("vary", "origin")]
        if origin.partition("://")[2].lower() != host.lower():
            raise ForbiddenError(
                f"Pages of the origin {origin[:200]!r} may not use this server; `pyengine serve "
                "--allow-origin` lets them.",
                code="origin_not_allowed",
            )
        return []

    def preflight(self, scope: Scope) -> list[tuple[str, str]] | None:
        """The headers that answer a browser's question ahead of a request; None if it is none."""
        wanted = scope.headers.get("access-control-request-method")
        if scope.method != "OPTIONS" or wanted is None or "origin" not in scope.headers:
            return None
        asked = scope.headers.get("access-control-request-headers") or "authorization, content-type"
        return [
            ("access-control-allow-methods", "GET, HEAD, POST, DELETE"),
            ("access-control-allow-headers", asked),
            ("access-control-max-age", str(MAX_AGE_S)),
        ]

    def enter(self, scope: Scope, path: str) -> ApiKey | None:
        """Let a request in; returns its API key, if it needed one.

        Args:
            scope: The request.
            path: Its path, as :meth:`path` gives it.

        Raises:
            AuthenticationError: It has no key, or one that lets nowhere in.
            ForbiddenError: Its key does not let in here.
            UnsupportedMediaError: Its body is not of the path's content type.
            RateLimitError: Its key has used what it may.
        """
        key = self._key(scope.headers, path)
        # No web page has the admin key, and few of its requests have a body.
        if scope.method == "POST" and not _of_admin(path):
            _check_content(scope.headers, path)
        if key is not None and (scope.method == "POST" or not path.startswith(_UNCOUNTED)):
            self._count(key, 1.0 if scope.method == "POST" else _WEIGHT_OF_READS)
        return key

    def named(self, name: str) -> ApiKey | None:
        """The key of that name, or None."""
        return next((key for key in self.rules.keys or () if key.name == name), None)

    def admit(self, key: ApiKey) -> float:
        """Count a request of a key, unless it has used what it may.

        Returns:
            0 if it was counted, else the seconds until there is room.
        """
        return self._rates.admit(key.slot, key.limits)

    def charge(self, key: ApiKey, tokens: int) -> None:
        """Count tokens that a key's request has used."""
        self._rates.charge(key.slot, key.limits, tokens)

    def _check_host(self, host: str) -> None:
        allowed = self.rules.hosts
        if allowed is None or not host:
            return
        name = host.partition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
        name = name.lower().rstrip(".")
        if name not in allowed and not is_loopback(name):
            raise ForbiddenError(
                f"This server is not called {name[:200]!r}; `pyengine serve --allow-host` adds a "
                "name.",
                code="host_not_allowed",
            )

    def _key(self, headers: Headers, path: str) -> ApiKey | None:
        rules = self.rules
        if path in OPEN_PATHS:
            return None
        if _of_admin(path):
            if rules.admin is None:
                raise ForbiddenError(
                    "Administration is closed; `pyengine serve --admin-key` opens it.",
                    code="admin_closed",
                )
            self._require(headers, rules.admin)
            return None
        if rules.metrics is not None and path.startswith(("/metrics", "/debug")):
            self._require(headers, rules.metrics)
            return None
        if rules.keys is None:
            return None
        given = _given(headers)
        key = None if given is None else self._ring.find(given)
        if key is None:
            raise _unauthenticated(given)
        return key

    def _require(self, headers: Headers, wanted: str) -> None:
        """Insist on the one key whose digest is ``wanted``."""
        given = _given(headers)
        if given is not None and hmac.compare_digest(digest_of(given), wanted):
            return
        if given is not None and self._ring.find(given) is not None:
            raise ForbiddenError("An API key does not let in here.", code="key_not_allowed")
        raise _unauthenticated(given)

    def _count(self, key: ApiKey, weight: float) -> None:
        seconds = self._rates.admit(key.slot, key.limits, weight)
        if seconds:
            limits = {"requests": key.limits.requests, "tokens": key.limits.tokens}
            text = " and ".join(f"{n} {kind}" for kind, n in limits.items() if n is not None)
            raise RateLimitError(
                f"The key {key.name!r} has used its {text} a minute; try again in "
                f"{math.ceil(seconds)} seconds.",
                retry_after=math.ceil(seconds),
            )


_ADAPTERS = ("/load_lora_adapter", "/unload_lora_adapter")
"""Paths of administrators that have the names that vLLM's have."""


def _of_admin(path: str) -> bool:
    path = path.removeprefix("/v1")  # which clients may leave out
    return path == "/admin" or path.startswith("/admin/") or path in _ADAPTERS


def _given(headers: Headers) -> str | None:
    """The key that a request brings, as clients of OpenAI, Anthropic or Azure send it."""
    scheme, _, token = (headers.get("authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or headers.get("api-key") or None


def _unauthenticated(given: str | None) -> AuthenticationError:
    return AuthenticationError(
        "This server needs an API key, as `Authorization: Bearer KEY`."
        if given is None
        else "The API key is not one of this server's."
    )


def _check_head(scope: Scope) -> None:
    """Refuse what proxies may read in another way than the HTTP library."""
    hosts = [value for name, value in scope.headers.items() if name == "host"]
    if len(hosts) > 1 or (scope.http_version == "1.1" and not hosts):
        raise InvalidRequestError("A request must have one Host header.")
    if scope.headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
        raise InvalidRequestError("A 'Transfer-Encoding' other than 'chunked' is not supported.")


def _check_content(headers: Headers, path: str) -> None:
    of_page = "origin" in headers or "sec-fetch-site" in headers
    if not of_page and path not in FORM_PATHS:
        return
    kind = (headers.get("content-type") or "").partition(";")[0].strip().lower()
    if (
        not kind
        and headers.get("content-length", "0") == "0"
        and "transfer-encoding" not in headers
    ):
        return  # no body; a page that sends one has an Origin
    wanted = "multipart/form-data" if path in FORM_PATHS else "application/json"
    if kind != wanted:
        what = "a form with the file" if path in FORM_PATHS else "JSON"
        raise UnsupportedMediaError(
            f"The body must be {what}, with the header 'Content-Type: {wanted}', not "
            f"{kind[:100] or 'none'!r}."
        )


def _cors_headers(origin: str) -> list[tuple[str, str]]:
    return [
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", _EXPOSED),
    ]
