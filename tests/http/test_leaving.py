"""A client that leaves before anything is generated for it."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from pyengine.errors import RequestAbortedError
from pyengine.http.errors import ShuttingDownError
from pyengine.http.exchange import Exchange
from pyengine.http.openai.completions import chat
from pyengine.http.service import Service
from tests.http.fake_engine import FakeEngine, small_tokenizer

BODY = {
    "model": "org/fake",
    "messages": [{"role": "user", "content": "hi"}],
    "prediction": {"type": "content", "content": "hello world"},
}


class _Connection:
    """One request; whether the client has left is for the test to say."""

    def __init__(self) -> None:
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answers: list[bytes] = []

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield json.dumps(BODY).encode()

    async def client_disconnect(self) -> None:
        await asyncio.shield(self.left)

    def response_bytes(self, status: int, headers: list[Any], body: bytes) -> None:
        self.answers.append(body)


class _Slow:
    """A tokenizer during whose work on a prediction something happens."""

    def __init__(self, meanwhile: Any) -> None:
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(small_tokenizer(), name)

    async def encode_async(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self._meanwhile()
        for _ in range(5):  # the waiting task notices it now
            await asyncio.sleep(0)
        return small_tokenizer().encode(text, add_special_tokens)


@pytest.mark.parametrize("stops", [False, True])
async def test_client_may_leave_while_the_prediction_is_read(stops: bool) -> None:
    connection: Any = _Connection()

    def meanwhile() -> None:
        if stops:
            exchange.cut_off = True
            exchange.abort()
        else:
            connection.left.set_result(None)

    engine = FakeEngine(ready=True, tokenizer=_Slow(meanwhile))  # type: ignore[arg-type]
    scope: Any = SimpleNamespace(headers={}, path="/v1/chat/completions")
    exchange = Exchange(Service(engine), scope, connection)
    with pytest.raises(RequestAbortedError) as aborted:
        await chat.create(exchange)
    assert isinstance(exchange.explain(aborted.value), ShuttingDownError) == stops
    exchange.end()
    assert not engine.running
    assert not connection.answers
