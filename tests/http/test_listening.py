"""Where the server listens: TLS, a unix socket, a port of the metrics; and under which names."""

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
import trustme

from pyengine.errors import ConfigError
from pyengine.http.limits import Limits
from pyengine.http.serving.granian_server import Certificate
from pyengine.http.serving.server import HttpServer, serve
from pyengine.http.serving.sockets import listen, listen_at
from pyengine.settings.server import ServerConfig
from tests.http.fake_engine import ANSWER, FakeEngine
from tests.programs import environment, served, until

BODY: dict[str, Any] = {"model": "org/fake", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> tuple[Path, Path]:
    chain, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    put(authority, chain, key)
    return chain, key


def put(authority: trustme.CA, chain: Path, key: Path) -> None:
    """A new certificate in the place of what is there."""
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    for path, pem in ((key, certificate.private_key_pem), (chain, certificate.cert_chain_pems[0])):
        fresh = path.with_suffix(".new")
        pem.write_to_path(fresh)
        fresh.rename(path)


@asynccontextmanager
async def serving(engine: FakeEngine, **settings: Any) -> AsyncIterator[str]:
    """The server of a configuration; its URL."""
    said: asyncio.Queue[str] = asyncio.Queue()
    config = ServerConfig(port=0, **settings)
    task = asyncio.create_task(serve(engine, config, announce=said.put_nowait))
    yield (await said.get()).split()[2].rstrip(",")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def serial(url: str, context: ssl.SSLContext) -> str:
    """The serial number of the certificate that a new connection is shown."""
    address = httpx.URL(url)
    with (
        socket.create_connection((address.host, address.port)) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as wrapped,
    ):
        shown = wrapped.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"])


async def test_the_openai_client_over_tls(
    engine: FakeEngine, files: tuple[Path, Path], trusted: ssl.SSLContext
) -> None:
    chain, key = map(str, files)
    async with serving(engine, tls_cert=chain, tls_key=key) as url:
        assert url.startswith("https://")
        async with (
            httpx.AsyncClient(verify=trusted) as http,
            openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key="none", http_client=cast(Any, http)
            ) as client,
        ):
            chunks = await client.chat.completions.create(**BODY, stream=True)
            text = [chunk.choices[0].delta.content or "" async for chunk in chunks]
            assert "".join(text) == ANSWER
        async with httpx.AsyncClient() as stranger:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.get(f"{url}/health")


@pytest.mark.parametrize("by_signal", [False, True])
async def test_a_certificate_is_replaced_while_a_stream_goes_on(
    engine: FakeEngine,
    files: tuple[Path, Path],
    authority: trustme.CA,
    trusted: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
    by_signal: bool,
) -> None:
    monkeypatch.setattr("pyengine.http.serving.reload.POLL_S", 1000.0 if by_signal else 0.01)
    engine.hold_after = 3
    chain, key = files
    async with (
        serving(engine, tls_cert=str(chain), tls_key=str(key)) as url,
        httpx.AsyncClient(base_url=url, verify=trusted, timeout=30) as http,
        http.stream("POST", CHAT, json={**BODY, "stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        before = await asyncio.to_thread(serial, url, trusted)
        put(authority, chain, key)
        if by_signal:
            signal.raise_signal(signal.SIGHUP)
        async with asyncio.timeout(30):
            while await asyncio.to_thread(serial, url, trusted) == before:
                pass
        renewed = await asyncio.to_thread(serial, url, trusted)
        chain.write_text("no certificate")
        if by_signal:
            signal.raise_signal(signal.SIGHUP)
        assert (await httpx_get(url, trusted, "/health")).status_code == 200
        assert await asyncio.to_thread(serial, url, trusted) == renewed
        engine.release()
        assert [line async for line in lines][-2] == "data: [DONE]"


def accepted(port: int) -> int:
    """The connections of ``port`` that a process has accepted: their sockets have inodes."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" and row[9] != "0" for row in rows)


async def test_a_handshake_goes_on_while_the_certificate_is_replaced(
    engine: FakeEngine, files: tuple[Path, Path], authority: trustme.CA, trusted: ssl.SSLContext
) -> None:
    await engine.start()
    server = HttpServer(engine, port=0, certificate=Certificate(*map(str, files)))
    url = await server.start()
    address = httpx.URL(url)
    assert address.port is not None
    reader, writer = await asyncio.open_connection(address.host, address.port)
    await until(partial(accepted, address.port))
    put(authority, *files)
    for _ in range(3):
        server.renew_certificate()
    renewed = await asyncio.to_thread(serial, url, trusted)
    await writer.start_tls(trusted, server_hostname="localhost")
    assert writer.get_extra_info("peercert")["serialNumber"] != renewed
    writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    assert await asyncio.to_thread(serial, url, trusted) == renewed
    writer.close()
    await server.stop(0)


async def httpx_get(url: str, context: ssl.SSLContext, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, verify=context) as http:
        return await http.get(path)


async def test_connections_beyond_the_limit_are_answered_over_tls(
    engine: FakeEngine, files: tuple[Path, Path], trusted: ssl.SSLContext
) -> None:
    await engine.start()
    certificate = Certificate(*map(str, files))
    limits = Limits(max_connections=1)
    server = HttpServer(engine, port=0, limits=limits, certificate=certificate)
    url = await server.start()
    address = httpx.URL(url)
    # The server counts this process's descriptors: these are more than other tests have left open,
    # some of which may be closed meanwhile.
    silent = [socket.create_connection((address.host, address.port)) for _ in range(32)]
    async with httpx.AsyncClient(base_url=url, verify=trusted) as first:
        assert (await first.get("/v1/models")).is_success
        async with asyncio.timeout(30):
            while (turned_away := await httpx_get(url, trusted, "/v1/models")).is_success:
                pass
        assert turned_away.status_code == 503
        assert (await httpx_get(url, trusted, "/health")).status_code == 200
    for connection in silent:
        connection.close()
    await server.stop(0)


async def test_a_unix_socket(engine: FakeEngine, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listen_at(str(path), 1).close()  # as a process that was killed leaves it
    async with serving(engine, uds=str(path)) as url:
        assert url == f"unix:{path}"
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://any.name") as http:
            answer = await http.post(CHAT, json=BODY)
            assert answer.json()["choices"][0]["message"]["content"] == ANSWER
        with pytest.raises(ConfigError, match="another process listens there"):
            listen_at(str(path), 1)
    assert not path.exists()
    path.write_text("a file")
    with pytest.raises(ConfigError, match="no socket"):
        listen_at(str(path), 1)


async def test_metrics_on_a_port_of_their_own(engine: FakeEngine) -> None:
    with listen("127.0.0.1", 0, 1) as taken:
        port = taken.getsockname()[1]
    async with serving(engine, metrics_port=port) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/v1/models")).status_code == 200
            for path in ("/metrics", "/debug/profile?seconds=x", "/metrics/"):
                assert (await http.get(path)).status_code == 404
            assert (await http.get("/health")).status_code == 200
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert (await http.get("/debug/profile?seconds=x")).status_code == 400
            assert (await http.get("/ready")).status_code == 200
            for path in ("/v1/models", "/models", "/", "/admin/requests"):
                assert (await http.get(path)).status_code == 404


async def test_every_name_of_the_model(
    client: openai.AsyncOpenAI, engine: FakeEngine, http: httpx.AsyncClient
) -> None:
    engine.model_names = ("org/fake", "fake", "gpt-4o")
    assert [model.id async for model in client.models.list()] == ["org/fake", "fake", "gpt-4o"]
    assert (await client.models.retrieve("gpt-4o")).id == "gpt-4o"
    for name in engine.model_names:
        asked = {**BODY, "model": name}
        assert (await client.chat.completions.create(**asked)).model == name
        chunks = [each async for each in await client.chat.completions.create(**asked, stream=True)]
        assert {chunk.model for chunk in chunks} == {name}
        assert (await client.completions.create(model=name, prompt="hi")).model == name
        assert (await client.responses.create(model=name, input="hi")).model == name
    with pytest.raises(openai.NotFoundError, match="this server has 'org/fake' and 'fake' and"):
        await client.models.retrieve("other")


class TestMessages:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(max_messages=3)

    async def test_conversations_have_a_most_of_messages(
        self, engine: FakeEngine, client: openai.AsyncOpenAI
    ) -> None:
        for count in (3, 4):
            many: Any = BODY["messages"] * count
            asked = (
                client.chat.completions.create(model="org/fake", messages=many),
                client.responses.create(model="org/fake", input=many),
            )
            for request in asked:
                if count == 3:
                    await request
                    continue
                with pytest.raises(openai.BadRequestError, match="may hold 3 messages, not 4"):
                    await request
        assert len(engine.asked) == 2


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tls_cert": __file__}, "'tls_cert' must be given with 'tls_key'"),
        ({"tls_cert": "/no/such", "tls_key": __file__}, "'tls_cert' must be a file"),
        ({"metrics_port": 70000}, "'metrics_port'"),
        ({"max_messages": 0}, "'max_messages'"),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ServerConfig(**settings)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6 and IPv4")
def test_every_address_is_that_of_either_family() -> None:
    with listen("::", 0, 1) as listener:
        port = listener.getsockname()[1]
        for address in ("::1", "127.0.0.1"):
            socket.create_connection((address, port)).close()


def test_connections_send_small_chunks_at_once() -> None:
    with listen("127.0.0.1", 0, 8) as listener:
        listener.setblocking(True)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_certificate_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="the certificate"):
        Certificate.of(ServerConfig(tls_cert=__file__, tls_key=__file__))


@pytest.mark.slow
async def test_two_workers_with_tls_metrics_and_names(
    files: tuple[Path, Path], trusted: ssl.SSLContext, authority: trustme.CA
) -> None:
    chain, key = files
    arguments = (
        "--workers", "2", "--port", "0", "--device", "simulated", "--simulated-step-ms", "1",
        "--tls-cert", str(chain), "--tls-key", str(key),
        "--served-name", "one", "--served-name", "two",
    )  # fmt: skip
    with served(*arguments) as server:
        url = server.url()
        models = (await httpx_get(url, trusted, "/v1/models")).json()["data"]
        assert [model["id"] for model in models] == ["one", "two"]
        before = await asyncio.to_thread(serial, url, trusted)
        put(authority, chain, key)
        server.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(60):
            fresh = 0
            while fresh < 20:  # in a row: both workers have it
                same = await asyncio.to_thread(serial, url, trusted) == before
                fresh = 0 if same else fresh + 1
        assert await asyncio.to_thread(server.end, signal.SIGTERM) == 0


@pytest.mark.slow
async def test_two_workers_at_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with listen("127.0.0.1", 0, 1) as taken:
        port = taken.getsockname()[1]
    arguments = ("--workers", "2", "--uds", str(path), "--device", "simulated")
    with served(*arguments, "--metrics-port", str(port), env=environment()) as server:
        server.expect(f"ready: pyengine-demo at unix:{path}/v1")
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            body = {"model": "pyengine-demo", "prompt": "hi", "max_tokens": 3}
            assert (await http.post("/v1/completions", json=body)).status_code == 200
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            assert "pyengine_engine_up" in (await http.get("/metrics")).text
        assert await asyncio.to_thread(server.end, signal.SIGTERM) == 0
    assert not path.exists()
