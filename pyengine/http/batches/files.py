"""Files in the store: an object each, its content in parts."""

import time
from collections.abc import Callable
from functools import partial

import msgspec

from pyengine.http.openai.schema.batches import FileObject
from pyengine.http.store.database import CONTENT, Part, Row
from pyengine.http.store.store import Store

KIND = "file"
_CHUNK = 1 << 20
_encode = msgspec.json.Encoder().encode


async def put_file(
    store: Store, owner: str, data: bytes, described: FileObject, seconds: float | None
) -> None:
    """Store a file.

    Args:
        store: Takes it.
        owner: The file's owner.
        data: Its content.
        described: Its object.
        seconds: How long it is kept; None is as long as usual.
    """
    parts = [
        Part(CONTENT, number, data[first : first + _CHUNK])
        for number, first in enumerate(range(0, len(data), _CHUNK))
    ]
    body = _encode(described)
    await store.put(KIND, owner, described.id, body, *parts, seconds=seconds)


async def content_of(store: Store, name: str) -> bytes:
    """The content of a file."""
    return b"".join([part.data for part in await store.parts(name, CONTENT)])


async def file_of_parts(
    store: Store, batch: Row, part: str, name: str, seconds: float | None
) -> bool:
    """Make the file ``name`` of the parts of a claimed batch; whether there is one: it had some."""
    make: Callable[[int], bytes] = partial(_described, name, f"{batch.id}_{part}.jsonl", seconds)
    row = (KIND, name, batch.owner)
    expires = time.time() + (store.limits.seconds if seconds is None else seconds)
    return await store.run(
        lambda data: data.split_off(batch.id, part, row, make, expires, batch.claim)
    )


def _described(name: str, filename: str, seconds: float | None, size: int) -> bytes:
    now = int(time.time())
    expires = None if seconds is None else now + int(seconds)
    return _encode(
        FileObject(
            id=name,
            bytes=size,
            created_at=now,
            expires_at=expires,
            filename=filename,
            purpose="batch_output",
        )
    )
