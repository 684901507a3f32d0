"""``/v1/files``: uploaded, listed, retrieved, their content, deleted."""

import asyncio
import io
import itertools
import time
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.http.batches.files import KIND, content_of, put_file
from pyengine.http.openai.schema.batches import ExpiresAfter, FileObject, Purpose
from pyengine.http.query import Deleted, ListQuery, put_value, read_query, stored_page
from pyengine.validation.decoding import refusal

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_LONGEST_NAME = 255
# A form has three, and unknown ones are refused by name.
_MOST_FIELDS = 100


class FilesQuery(ListQuery, kw_only=True, forbid_unknown_fields=True):
    """Selects files by purpose."""

    most: ClassVar[int] = 10_000

    limit: int = 10_000
    purpose: str | None = None


class Upload(msgspec.Struct, forbid_unknown_fields=True):
    """The form of an upload beside its file."""

    purpose: Purpose
    expires_after: ExpiresAfter | None = None


async def upload(exchange: "Exchange") -> None:
    """Store a file."""
    service = exchange.service
    service.store.require()
    async with exchange.taken_body(service.limits.of_files) as body:
        await _store(exchange, body)


async def _store(exchange: "Exchange", body: bytes) -> None:
    service = exchange.service
    kind = exchange.scope.headers.get("content-type") or ""
    fields, filename, data = await asyncio.to_thread(_form, kind, body)
    try:
        given = msgspec.convert(fields, Upload, strict=False)
    except msgspec.ValidationError as error:
        raise refusal(error, Upload) from None
    now, kept = int(time.time()), given.expires_after
    described = FileObject(
        id=service.new_id("file-"),
        bytes=len(data),
        created_at=now,
        expires_at=None if kept is None else now + kept.seconds,
        filename=filename,
        purpose=given.purpose,
    )
    seconds = None if kept is None else float(kept.seconds)
    await put_file(service.store, exchange.owner, data, described, seconds)
    exchange.answer(described)


def _form(kind: str, body: bytes) -> tuple[dict[str, Any], str, bytes]:
    """The fields of a form, and its file: name and content.

    Raises:
        InvalidRequestError: It is malformed, or has no file.
    """
    from python_multipart import parse_form
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import Field, File

    fields: dict[str, Any] = {}
    files: list[tuple[str, bytes]] = []
    numbers = itertools.count(1)

    def on_field(field: Field) -> None:
        if next(numbers) > _MOST_FIELDS:
            raise InvalidRequestError(f"The form has more than {_MOST_FIELDS} fields.")
        name = (field.field_name or b"").decode("utf-8", "replace")
        value = (field.value or b"").decode("utf-8", "replace")
        outer, _, inner = name.partition("[")
        put_value(fields, outer, value, inner.rstrip("]") or None)

    def on_file(file: File) -> None:
        file.file_object.seek(0)
        name = (file.file_name or b"").decode("utf-8", "replace")[:_LONGEST_NAME]
        files.append((name, file.file_object.read()))

    headers = {"Content-Type": kind.encode("latin-1"), "Content-Length": str(len(body)).encode()}
    try:
        parse_form(headers, io.BytesIO(body), on_field, on_file)
    except FormParserError as error:
        raise InvalidRequestError(f"The form is malformed: {error}.") from None
    if len(files) != 1:
        raise InvalidRequestError(
            "The form needs one 'file'.", param="file", code="missing_required_parameter"
        )
    return fields, *files[0]


async def list_all(exchange: "Exchange") -> None:
    """The stored files, the newest first."""
    query = read_query(exchange.scope.query_string, FilesQuery)
    page = await stored_page(exchange, KIND, query, purpose=query.purpose)
    exchange.answer(page)


async def retrieve(exchange: "Exchange") -> None:
    """A file."""
    row = await exchange.service.store.get(KIND, exchange.owner, exchange.parameter)
    exchange.reply(row.body)


async def content(exchange: "Exchange") -> None:
    """The content of a file."""
    store = exchange.service.store
    row = await store.get(KIND, exchange.owner, exchange.parameter)
    data = await content_of(store, row.id)
    exchange.reply(data, content_type="application/octet-stream")


async def delete(exchange: "Exchange") -> None:
    """Remove a file."""
    await exchange.service.store.delete(KIND, exchange.owner, exchange.parameter)
    exchange.answer(Deleted(exchange.parameter, "file"))
