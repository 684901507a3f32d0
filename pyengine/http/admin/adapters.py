"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, with the bodies that vLLM's have.

The door lets in who has the admin key.
"""

from typing import TYPE_CHECKING

import msgspec

from pyengine.async_engine import AsyncEngine
from pyengine.errors import AdapterError, InvalidRequestError

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange


class LoadLoraAdapter(msgspec.Struct, forbid_unknown_fields=True):
    """Names an adapter to load.

    Attributes:
        lora_name: What requests name as their model.
        lora_path: The folder of the adapter, on the server's machine.
        load_inplace: Whether the name may be another adapter's so far: requests that run keep that.
    """

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadLoraAdapter(msgspec.Struct, forbid_unknown_fields=True):
    """Names an adapter to take away.

    Attributes:
        lora_name: What it was loaded as.
        lora_int_id: A number that other servers give adapters; null.
    """

    lora_name: str
    lora_int_id: None = None


class AdapterState(msgspec.Struct):
    """An adapter that was loaded, or taken away.

    Attributes:
        lora_name: Its name.
        digest: The SHA-256 of its weights.
        base: The model that it was trained on, as its folder says.
    """

    lora_name: str
    digest: str
    base: str | None


_load = msgspec.json.Decoder(LoadLoraAdapter)
_unload = msgspec.json.Decoder(UnloadLoraAdapter)


async def load(exchange: "Exchange") -> None:
    """Load an adapter."""
    wanted = await exchange.read(_load)
    engine = _alone(exchange)
    if wanted.lora_name in engine.adapters and not wanted.load_inplace:
        raise InvalidRequestError(
            f"The adapter '{wanted.lora_name[:100]}' is loaded already; give 'load_inplace' to "
            "replace it.",
            param="lora_name",
        )
    adapter = await engine.load_adapter(wanted.lora_path, wanted.lora_name)
    exchange.answer(AdapterState(adapter.name, adapter.digest, adapter.base))


async def unload(exchange: "Exchange") -> None:
    """Take an adapter's name away; requests that run keep the adapter."""
    wanted = await exchange.read(_unload)
    adapter = _alone(exchange).unload_adapter(wanted.lora_name)
    exchange.answer(AdapterState(adapter.name, adapter.digest, adapter.base))


def _alone(exchange: "Exchange") -> AsyncEngine:
    """The engine, if this process knows all the names that its adapters have.

    Raises:
        AdapterError: Other HTTP workers would not know the name.
        PyengineError: The engine does not work just now.
    """
    if not exchange.service.administration.alone:
        raise AdapterError(
            "With several --workers, adapters are loaded at the start: give each as --adapter "
            "name=folder."
        )
    return exchange.service.require_responsive()
