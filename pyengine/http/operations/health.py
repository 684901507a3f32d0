"""``GET /health`` and ``/ping``: the process lives. ``GET /ready``: the engine works on requests.
``GET /version``: pyengine's.
"""

from typing import TYPE_CHECKING

from pyengine._core import __version__

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange


async def health(exchange: "Exchange") -> None:
    """The process lives."""
    exchange.reply(b'{"status":"ok"}')


async def ready(exchange: "Exchange") -> None:
    """The engine works on requests, or an error says what they wait for."""
    exchange.service.require_responsive()
    exchange.reply(b'{"status":"ready"}')


async def version(exchange: "Exchange") -> None:
    """The version of pyengine."""
    exchange.answer({"version": __version__})
