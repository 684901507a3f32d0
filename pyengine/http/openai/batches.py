"""``/v1/batches``: created, listed, retrieved, cancelled."""

import time
from typing import TYPE_CHECKING

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.http.batches import files
from pyengine.http.batches.run import OPTIONS, decode_batch
from pyengine.http.batches.runner import KIND
from pyengine.http.errors import NoSuchObjectError
from pyengine.http.openai.schema.batches import BatchObject, BatchRequest, RequestCounts
from pyengine.http.openai.schema.common import check_metadata
from pyengine.http.query import ListQuery, read_query, stored_page
from pyengine.http.store.database import Part

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_decoder = msgspec.json.Decoder(BatchRequest)
_encode = msgspec.json.Encoder().encode
_WINDOW_S = 24 * 3600


async def create(exchange: "Exchange") -> None:
    """Answer the requests of a file, when there is room."""
    request = await exchange.read(_decoder)
    service = exchange.service
    check_metadata(request.metadata)
    if request.endpoint not in (there := service.batches.endpoints):
        raise InvalidRequestError(
            f"'endpoint' must be one of {', '.join(there)}, not '{request.endpoint[:100]}'.",
            param="endpoint",
        )
    try:
        row = await service.store.get(files.KIND, exchange.owner, request.input_file_id)
    except NoSuchObjectError as error:
        raise InvalidRequestError(
            f"'input_file_id': {error.message}", param="input_file_id"
        ) from None
    if msgspec.json.decode(row.body)["purpose"] != "batch":
        raise InvalidRequestError(
            "'input_file_id' must be a file that was uploaded with the purpose 'batch'.",
            param="input_file_id",
        )
    now = int(time.time())
    batch = BatchObject(
        id=service.new_id("batch_"),
        endpoint=request.endpoint,
        input_file_id=request.input_file_id,
        completion_window=request.completion_window,
        created_at=now,
        expires_at=now + _WINDOW_S,
        request_counts=RequestCounts(),
        model=service.engine.model_name,
        metadata=request.metadata,
    )
    options, body = Part(OPTIONS, 0, _encode(request.output_expires_after)), _encode(batch)
    await service.store.put(KIND, exchange.owner, batch.id, body, options)
    service.batches.look()
    exchange.reply(body)


async def list_all(exchange: "Exchange") -> None:
    """The batches, the newest first."""
    query = read_query(exchange.scope.query_string, ListQuery)
    page = await stored_page(exchange, KIND, query)
    exchange.answer(page)


async def retrieve(exchange: "Exchange") -> None:
    """A batch."""
    row = await exchange.service.store.get(KIND, exchange.owner, exchange.parameter)
    exchange.reply(row.body)


async def cancel(exchange: "Exchange") -> None:
    """Answer no more of a batch's requests; what is answered can be read then."""
    store = exchange.service.store
    row = await store.get(KIND, exchange.owner, exchange.parameter)

    def cancelled(body: bytes) -> bytes | None:
        batch = decode_batch(body)
        if batch.status not in ("validating", "in_progress"):
            return None
        batch.status, batch.cancelling_at = "cancelling", int(time.time())
        return _encode(batch)

    body = await store.change(row.id, cancelled) or row.body
    if decode_batch(body).status != "cancelling":
        raise InvalidRequestError(
            f"The batch is {decode_batch(body).status}; it cannot be cancelled.",
            code="batch_not_cancellable",
        )
    exchange.service.batches.look()
    exchange.reply(body)
