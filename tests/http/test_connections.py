"""Connections that send nothing, and those beyond the limit."""

import asyncio
import socket
import ssl
import sys
from pathlib import Path

import httpx
import pytest
import trustme

from pyengine.http.limits import Limits
from pyengine.http.serving.server import HttpServer
from tests.http.fake_engine import FakeEngine
from tests.programs import served, until

WAIT_S = 30


class TestSilence:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(idle_seconds=0.2)

    @pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nhost:"])
    async def test_a_connection_without_a_request_is_closed(
        self, server: HttpServer, sent: bytes
    ) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(WAIT_S):
            await reader.read()  # to the end
        writer.close()

    async def test_an_answer_that_takes_long_is_not_cut_off(
        self, http: httpx.AsyncClient, engine: FakeEngine
    ) -> None:
        engine.hold_after = 1
        body = {"model": "org/fake", "prompt": "hi", "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            chunks = answer.aiter_lines()
            await anext(chunks)
            silent = await asyncio.open_connection(*_address(str(http.base_url)))
            async with asyncio.timeout(WAIT_S):
                await silent[0].read()  # its deadline passes, and so would the stream's
            silent[1].close()
            engine.release()
            assert [chunk async for chunk in chunks][-2] == "data: [DONE]"


class TestUnread:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(unread_seconds=0.3)

    async def test_a_client_that_reads_nothing_loses_its_connection(
        self, server: HttpServer, engine: FakeEngine
    ) -> None:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(_address(server.url))
        client.setblocking(False)
        # More answers than the buffers of both sides have room for.
        request = b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        client.send(400 * request)

        def is_closed() -> bool:
            try:
                client.send(b"G")
            except BlockingIOError:
                return False
            except ConnectionError:
                return True
            return False

        with client:
            await until(is_closed)


def _address(url: str) -> tuple[str, int]:
    host, port = url.rpartition("//")[2].rstrip("/").split(":")
    return host, int(port)


SCRIPT = """
import asyncio, sys, resource
from tests.http.fake_engine import FakeEngine
from pyengine.http.serving.server import leave, serve
from pyengine.settings.server import ServerConfig
import logging
logging.basicConfig(format="%(message)s")
files, connections = map(int, sys.argv[2:4])
chain, key = sys.argv[4:] or (None, None)
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

async def main():
    config = ServerConfig(
        port=0, max_connections=connections, tls_cert=chain, tls_key=key
    )
    await serve(FakeEngine(), config, announce=lambda line: print(line, flush=True))

asyncio.run(main())
leave()
"""


def connections_to(url: str, count: int) -> list[socket.socket]:
    """So many connections that send nothing."""
    return [socket.create_connection(_address(url), WAIT_S) for _ in range(count)]


def answer_on(connection: socket.socket, path: str) -> bytes:
    """The head of the answer to a request for ``path``; empty if the server closed instead."""
    try:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        return connection.recv(65536)
    except ConnectionError:
        return b""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.slow
@pytest.mark.parametrize(("files", "connections", "most"), [(0, 40, 40), (256, 8192, 160)])
def test_silent_connections_do_not_take_the_server_away(
    files: int, connections: int, most: int
) -> None:
    with served(str(files), str(connections), command=[sys.executable, "-c", SCRIPT]) as server:
        url = server.url()
        if files:
            server.expect(rf"open files \({files}, see ulimit -n\) leaves \d+ connections")
        silent = connections_to(url, 400)
        server.expect(r"all \d+ connections are taken")
        for path in ("/health", "/ready"):
            answer = httpx.get(f"{url}{path}", timeout=WAIT_S)
            assert answer.status_code == 200
        refused = httpx.get(f"{url}/v1/models", timeout=WAIT_S)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "overloaded"
        before = cpu_seconds(server.process.pid)
        for _ in range(20):
            assert httpx.get(f"{url}/health", timeout=WAIT_S).status_code == 200
        assert cpu_seconds(server.process.pid) - before < 1  # a loop over EMFILE would burn more
        held = [answer_on(one, "/health") for one in silent[: most // 2]]
        assert all(head.startswith(b"HTTP/1.1 200") for head in held)
        for one in silent:
            one.close()
        server.expect(r"connections are free again")
        assert httpx.get(f"{url}/v1/models", timeout=WAIT_S).status_code == 200


@pytest.mark.slow
def test_handshakes_that_never_end_do_not_take_the_server_away(tmp_path: Path) -> None:
    """They are not requests yet, so no limit of those counts them."""
    authority = trustme.CA()
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    files = map(str, (tmp_path / "tls.crt", tmp_path / "tls.key"))
    command = [sys.executable, "-c", SCRIPT]
    with served("256", "8192", *files, command=command) as server:
        url = server.url()
        server.expect(r"open files \(256, see ulimit -n\) leaves \d+ connections")
        silent = connections_to(url, 400)
        server.expect(r"all \d+ connections are taken")
        assert httpx.get(f"{url}/health", timeout=WAIT_S, verify=trusted).status_code == 200
        server.expect(r"connections are free again")  # granian's deadline of a handshake
        assert httpx.get(f"{url}/v1/models", timeout=WAIT_S, verify=trusted).status_code == 200
        for one in silent:
            one.close()
