"""Hostile and broken input: each a clear 4xx, and the server goes on."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from pyengine.errors import EngineDeadError
from pyengine.http.limits import Limits
from pyengine.http.serving.server import HttpServer
from tests.http.fake_engine import FakeEngine
from tests.programs import until

MODEL = "org/fake"
CHAT = "/v1/chat/completions"
GOOD = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def _chat(inside: bytes) -> bytes:
    return b'{"model":"org/fake","messages":[{"role":"user","content":"hi"}],%b}' % inside


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"\x00\x01\x02", None),
        (b"[]", None),
        (b'"text"', None),
        (b"null", None),
        (b"{}", "messages"),
        (b'{"model":"org/fake"}', "messages"),
        (b'{"model":"org/fake","messages":5}', "messages"),
        (b'{"model":"org/fake","messages":[5]}', "messages[0]"),
        (
            b'{"model":"org/fake","messages":[{"role":"user","content":"hi"},{"role":5}]}',
            "messages[1].role",
        ),
        (_chat(b'"temperature":NaN'), None),
        (_chat(b'"temperature":Infinity'), None),
        (_chat(b'"temperature":1e999'), "temperature"),
        (_chat(b'"temperature":-1e999'), "temperature"),
        (_chat(b'"top_p":-1'), "top_p"),
        (_chat(b'"seed":123456789012345678901234567890'), "seed"),
        (_chat(b'"max_tokens":123456789012345678901234567890'), None),
        (_chat(b'"user":"\xff\xfe"'), None),
        (_chat(b'"user":"\\ud800"'), None),
        (_chat(b'"us\xffer":"x"'), None),
        (_chat(b'"tools":' + b"[" * 200_000), None),
        (_chat(b'"nonsense":1'), "nonsense"),
        (_chat(b'"temperature":1') + b"{}", None),
        (b"\xef\xbb\xbf{}", None),
    ],
)
async def test_bodies(
    http: httpx.AsyncClient, engine: FakeEngine, body: bytes, param: str | None
) -> None:
    answer = await http.post(CHAT, content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param
    assert len(error["message"]) < 500
    assert not engine.asked
    assert (await http.post(CHAT, json=GOOD)).status_code == 200


async def test_unknown_model(http: httpx.AsyncClient) -> None:
    answer = await http.post(CHAT, json={**GOOD, "model": "gpt-4o"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")


async def test_unknown_path(http: httpx.AsyncClient) -> None:
    for path in ("/v1/nothing", "/nothing", "/health/x", "/v1/metrics"):
        answer = await http.get(path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "unknown_url"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/completion", "did you mean /v1/completions?"),
        ("/v1/v1/chat/completions", "did you mean /v1/chat/completions? OpenAI's clients"),
        ("/v1", "/docs shows what there is."),
        ("/v1/moderations", "/docs shows what there is."),
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
    ],
)
async def test_an_unknown_path_is_told_the_way(
    http: httpx.AsyncClient, path: str, says: str
) -> None:
    message = (await http.post(path, json=GOOD)).json()["error"]["message"]
    assert f"POST {path}; {says}" in message


@pytest.mark.parametrize(
    ("path", "field", "param", "there"),
    [
        (
            CHAT,
            {"messages": [{"role": "boss", "content": "hi"}]},
            "messages[0].role",
            {"system", "developer", "user", "assistant", "tool", "function"},
        ),
        (
            CHAT,
            {"response_format": {"type": "yaml"}},
            "response_format.type",
            {"text", "json_object", "json_schema", "structural_tag"},
        ),
        (CHAT, {"tool_choice": "always"}, "tool_choice", {"none", "auto", "required", "any"}),
        (
            "/v1/responses",
            {"input": [{"role": "boss", "content": "hi"}]},
            "input[0].role",
            {"system", "developer", "user", "assistant"},
        ),
    ],
)
async def test_a_word_that_a_field_does_not_know_is_told_those_it_does(
    http: httpx.AsyncClient, path: str, field: dict[str, Any], param: str, there: set[str]
) -> None:
    body = {key: value for key, value in GOOD.items() if path == CHAT or key == "model"}
    answer = await http.post(path, json={**body, **field})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    _, _, told = error["message"].rstrip(".").partition("; there are: ")
    assert set(told.split(", ")) == there


async def test_wrong_method(http: httpx.AsyncClient) -> None:
    for method, path, allow in (
        ("PUT", CHAT, "POST, GET, HEAD"),
        ("DELETE", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("OPTIONS", "/health", "GET, HEAD"),
    ):
        answer = await http.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allow)
        assert answer.json()["error"]["code"] == "method_not_allowed"
    assert (await http.head("/health")).status_code == 200


async def test_compressed_body(http: httpx.AsyncClient) -> None:
    answer = await http.post(CHAT, content=b"x", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_of_fifty_megabytes(http: httpx.AsyncClient, announced: bool) -> None:
    megabyte = b"x" * (1 << 20)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield megabyte

    headers = {"content-length": str(50 << 20)} if announced else {}
    answer = await http.post(CHAT, content=chunks(), headers=headers)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "payload_too_large"
    assert (await http.post(CHAT, json=GOOD)).status_code == 200


async def _raw(server: HttpServer, data: bytes, *, eof: bool = False) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    if eof:
        writer.write_eof()
    answer = await reader.read(4096)
    writer.close()
    return answer


async def test_a_client_that_asks_before_it_sends(server: HttpServer) -> None:
    answer = await _raw(
        server,
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
        b"content-type: application/json\r\ncontent-length: 52428800\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("limits", [Limits(body_seconds=0.05)])
async def test_a_client_that_never_sends(server: HttpServer) -> None:
    answer = await _raw(
        server,
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
        b"content-type: application/json\r\ncontent-length: 10\r\n\r\n{",
    )
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in answer


@pytest.mark.parametrize("limits", [Limits(bodies_bytes=1 << 20)])
async def test_bodies_under_way_have_one_room(server: HttpServer, http: httpx.AsyncClient) -> None:
    """What never ends is held; what is announced only is not, and small bodies need none."""
    host, port = server.url.removeprefix("http://").split(":")
    held = []
    for sent in (500_000, 500_000, 0):
        _, writer = await asyncio.open_connection(host, int(port))
        held.append(writer)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            b"content-type: application/json\r\ncontent-length: 4000000\r\n\r\n" + b" " * sent
        )
    await until(lambda: server.app.bodies._taken == 1_000_000)
    large = json.dumps(GOOD).encode() + b" " * 600_000

    async def chunks() -> AsyncIterator[bytes]:
        yield large

    for content in (large, chunks()):
        answer = await http.post(
            CHAT, content=content, headers={"content-type": "application/json"}
        )
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "too many large bodies" in answer.json()["error"]["message"]
    assert (await http.post(CHAT, json=GOOD)).status_code == 200
    for writer in held:
        writer.close()
    await until(lambda: server.app.bodies._taken == 0)
    answer = await http.post(CHAT, content=large, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    assert server.app.bodies._taken == 0


async def test_malformed_chunks(server: HttpServer) -> None:
    answer = await _raw(
        server,
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\nZZ\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"type":"invalid_request_error"' in answer


PROMPT = b'{"model":"org/fake","prompt":"x"}'
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(PROMPT), PROMPT)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"host: x\r\nhost: y\r\ncontent-length: %d\r\n" % len(PROMPT), PROMPT),
        (b"content-length: %d\r\n" % len(PROMPT), PROMPT),
        (b"host: x\r\ntransfer-encoding: gzip, chunked\r\n", CHUNKED),
        (b"host: x\r\ncontent-length: 90000\r\n", PROMPT),
    ],
    ids=["two hosts", "no host", "transfer encoding", "cut short"],
)
async def test_what_proxies_may_read_in_another_way_is_refused(
    server: HttpServer, engine: FakeEngine, head: bytes, body: bytes
) -> None:
    asked = b"POST /v1/completions HTTP/1.1\r\nconnection: close\r\n%b\r\n%b" % (head, body)
    answer = await _raw(server, asked, eof=b"90000" in head)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"type":"invalid_request_error"' in answer
    assert not engine.asked


async def test_no_http_at_all(server: HttpServer, http: httpx.AsyncClient) -> None:
    answer = await _raw(server, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer == b"" or b" 400 " in answer
    assert (await http.post(CHAT, json=GOOD)).status_code == 200


@pytest.mark.parametrize(
    ("path", "header", "status", "code"),
    [
        ("a" * (32 << 10), b"", 414, "uri_too_long"),
        ("a?b=" + "c" * (60 << 10), b"", 414, "uri_too_long"),
        ("v1/models", b"d" * (32 << 10), 431, "headers_too_large"),
        ("v1/models", b"d" * (120 << 10), 431, "headers_too_large"),
    ],
    ids=range(4),
)
async def test_a_long_head(
    server: HttpServer, path: str, header: bytes, status: int, code: str
) -> None:
    answer = await _raw(
        server, b"GET /%b HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (path.encode(), header)
    )
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(body)["error"]["code"] == code


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"G{}T / HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n%b\r\n" % (b"x: y\r\n" * 101), 431),
        (b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n" % (b"a" * (66 << 10)), 414),
    ],
    ids=range(8),
)
async def test_answers_of_the_http_library_have_no_body(
    server: HttpServer, http: httpx.AsyncClient, head: bytes, status: int
) -> None:
    answer = await _raw(server, head)
    lines = answer.split(b"\r\n")
    assert lines[0].startswith(b"HTTP/1.1 %d " % status)
    assert b"content-length: 0" in lines
    assert answer.endswith(b"\r\n\r\n")
    assert (await http.post(CHAT, json=GOOD)).status_code == 200


async def test_a_head_beyond_the_buffer(server: HttpServer, http: httpx.AsyncClient) -> None:
    head = b"GET / HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (b"y" * (1 << 20))
    try:
        answer = await _raw(server, head)
    except ConnectionError:  # closed while the rest is still being sent
        answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    assert (await http.post(CHAT, json=GOOD)).status_code == 200


async def test_request_ids(http: httpx.AsyncClient) -> None:
    given = await http.get("/health", headers={"x-request-id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    made = [(await http.get("/nothing")).headers["x-request-id"] for _ in range(2)]
    assert len(set(made)) == 2
    long = await http.get("/health", headers={"x-request-id": "x" * 500})
    assert long.headers["x-request-id"].startswith("req-")


class RustPanic(BaseException):
    """A panic in Rust, which is no Exception in Python."""


@pytest.mark.parametrize("failure", [ZeroDivisionError("secret"), RustPanic("secret")])
async def test_an_unexpected_failure_says_nothing(
    http: httpx.AsyncClient,
    engine: FakeEngine,
    caplog: pytest.LogCaptureFixture,
    failure: BaseException,
) -> None:
    engine.refuse = failure
    answer = await http.post(CHAT, json=GOOD)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text
    assert "secret" in caplog.text


@pytest.mark.parametrize("failure", [ZeroDivisionError("secret"), None])
async def test_a_failure_within_a_stream(
    http: httpx.AsyncClient, engine: FakeEngine, failure: Exception | None
) -> None:
    engine.fail_after = (2, failure or EngineDeadError("the engine died"))
    answer = await http.post(CHAT, json={**GOOD, "max_tokens": 9, "stream": True})
    assert answer.status_code == 200
    events = answer.text.split("\n\n")
    assert "[DONE]" not in answer.text
    error = json.loads(events[-2].removeprefix("data: "))["error"]
    assert error["code"] == ("engine_dead" if failure is None else "internal_error")
    assert "secret" not in answer.text
    assert not engine.running
