"""What stays in the server's memory of requests that have ended: nothing."""

import asyncio
import gc

import httpx

from pyengine.http.exchange import Exchange
from pyengine.http.serving.server import HttpServer
from tests.http.fake_engine import FakeEngine
from tests.programs import until

CHAT = {"model": "org/fake", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "org/fake", "prompt": "hi"}
REQUESTS = {
    "completion": ("/v1/completions", COMPLETION),
    "completions": ("/v1/completions", COMPLETION | {"n": 3}),
    "stream": ("/v1/completions", COMPLETION | {"stream": True}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat stream": ("/v1/chat/completions", CHAT | {"stream": True}),
    "response": ("/v1/responses", {"model": "org/fake", "input": "hi"}),
    "refusal": ("/v1/completions", COMPLETION | {"temperature": -1}),
}


def exchanges() -> dict[int, Exchange]:
    """The exchanges in memory, by their identity."""
    gc.collect()
    # By its type alone: what asks an object for its class wakes proxies of other packages.
    return {id(each): each for each in gc.get_objects() if issubclass(type(each), Exchange)}


async def test_requests_that_have_ended_leave_nothing(
    http: httpx.AsyncClient, engine: FakeEngine, server: HttpServer
) -> None:
    # A test that closes its loop under a request leaves it in this process. They are kept here, so
    # that no new exchange gets the identity of one of them.
    others = exchanges()
    for kind, (path, body) in REQUESTS.items():
        answer = await http.post(path, json=body)
        assert answer.status_code == (400 if kind == "refusal" else 200), answer.text
    engine.hold_after = 2
    body = COMPLETION | {"stream": True}
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        await anext(answer.aiter_lines())
    await asyncio.wait_for(engine.until(lambda: engine.aborted > 0), 10)
    await asyncio.wait_for(server.app.running.idle.wait(), 10)
    # granian's thread lets go of the client that left a moment later than its request ends.
    await until(lambda: exchanges().keys() <= others.keys())
