"""Answers the requests of batches by the server's own endpoints, several at once."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import msgspec

from pyengine.http.access.keys import ApiKey
from pyengine.http.batches.lines import AnswerLine, LineAnswer, RequestLine

Perform = Callable[[str, bytes, ApiKey | None, int], Awaitable[tuple[int, bytes, str]]]
"""Answers a request of a path and a body, for a key, at a priority: status, body, request id."""

_encode = msgspec.json.Encoder().encode
# What says that there is no room now.
_LATER = (429, 503)
_PAUSE_S = 0.5


async def answer(
    perform: Perform,
    request: RequestLine,
    line_id: str,
    key: ApiKey | None = None,
    priority: int = 0,
) -> AnswerLine:
    """The answer to one request; while the engine is full, it waits and asks again."""
    body = _encode(request.body)
    while True:
        status, answered, request_id = await perform(request.url, body, key, priority)
        if status not in _LATER:
            made = LineAnswer(status, request_id, msgspec.Raw(answered))
            return AnswerLine(line_id, request.custom_id, made, None)
        await asyncio.sleep(_PAUSE_S)


async def in_parallel(workers: int, work: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run ``work`` as often at once; an exception of one ends all, and so does cancelling."""
    tasks = [asyncio.create_task(work()) for _ in range(workers)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
