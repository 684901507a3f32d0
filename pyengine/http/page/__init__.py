"""``GET /``: a page to talk to the model and to watch the engine.

One document without any other: its style and script are put into it when it is first asked for,
and the security policy names their hashes, so that a browser runs nothing else. It talks to the
server that it came from, through the same endpoints as every client.
"""

import hashlib
from base64 import b64encode
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from pyengine.http.errors import NoSuchPathError
from pyengine.http.extensions import Extension
from pyengine.http.operations.operation import Operation

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

# One script in the page, in this order; the last begins it.
SCRIPTS = (
    "elements.js", "markdown.js", "conversation.js", "drawing.js", "live.js", "controls.js",
)  # fmt: skip


async def page(exchange: "Exchange") -> None:
    """The page, unless it is switched off."""
    if not exchange.service.limits.page:
        raise NoSuchPathError("This server has no page; its API is under /v1.")
    body, policy = document()
    exchange.reply(
        body,
        200,
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
        content_type="text/html; charset=utf-8",
    )


@cache
def document() -> tuple[bytes, str]:
    """The page, and its content security policy."""
    folder = files(__package__)
    text = (folder / "index.html").read_text(encoding="utf-8")
    style = (folder / "page.css").read_text(encoding="utf-8")
    script = "".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    text = text.replace("/* style */", style).replace("/* script */", script)
    style, script = (_digest(part) for part in (style, script))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return text.encode(), policy


def _digest(part: str) -> str:
    """The hash that lets a browser run ``part``."""
    return f"'sha256-{b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"


EXTENSION = Extension(paths={"/": {"GET": Operation(page, "text/html")}})
