"""``GET /health``: the process lives. ``GET /ready``: the model is loaded and takes requests."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange


async def health(exchange: "Exchange") -> None:
    """200 as long as the loop turns."""
    exchange.reply(b'{"status":"ok"}')


async def ready(exchange: "Exchange") -> None:
    """200 if requests are taken, else 503."""
    exchange.service.require_ready()
    exchange.reply(b'{"status":"ready"}')
