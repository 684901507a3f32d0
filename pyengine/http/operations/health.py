"""``GET /health``: the process lives. ``GET /ready``: the engine works on requests."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange


async def health(exchange: "Exchange") -> None:
    """200 as long as the loop turns."""
    exchange.reply(b'{"status":"ok"}')


async def ready(exchange: "Exchange") -> None:
    """200 if the engine works on requests, else an error that says what they wait for."""
    exchange.service.require_responsive()
    exchange.reply(b'{"status":"ready"}')
