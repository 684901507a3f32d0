"""Who gets in: keys, their limits, web pages, names of the host, content types."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from pyengine.errors import ConfigError
from pyengine.http.access.door import OPEN_PATHS, Door
from pyengine.http.access.keys import KeyLimits, read_keys
from pyengine.http.access.rates import Rates
from pyengine.http.access.rules import is_loopback
from pyengine.http.access.source import AccessSource
from pyengine.http.limits import Limits
from pyengine.http.operations.paths import routes
from pyengine.http.serving.server import HttpServer, serve
from pyengine.settings.server import ServerConfig
from tests.http.fake_engine import ANSWER, FakeEngine

KEY, OTHER, ADMIN, METRICS = "sk-alice-1", "sk-bob-123", "sk-admin-1", "sk-metrics"
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "org/fake",
    "messages": [{"role": "user", "content": "hi"}],
    "user": "someone",
}
PAGE = "https://page.example"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"api_key": (KEY, OTHER), "admin_key": ADMIN}


@pytest.fixture
async def server(engine: FakeEngine, settings: dict[str, Any]) -> AsyncIterator[HttpServer]:
    await engine.start()
    door = Door(AccessSource(ServerConfig(**settings)).rules())
    server = HttpServer(engine, port=0, door=door)
    await server.start()
    yield server
    await server.stop(0)


async def test_the_openai_client_needs_a_key(server: HttpServer, engine: FakeEngine) -> None:
    for key in (KEY, OTHER):
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key) as client:
            answer = await client.chat.completions.create(**BODY)
            assert answer.choices[0].message.content == ANSWER
    assert [asked.tenant for asked in engine.asked] == ["api-key-1", "api-key-2"]
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="wrong-key") as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.chat.completions.create(**BODY)
    assert refused.value.code == "invalid_api_key"
    assert refused.value.response.headers["www-authenticate"] == "Bearer"
    assert "wrong-key" not in str(refused.value)


@pytest.mark.parametrize(
    "headers",
    [
        bearer(KEY),
        {"authorization": f"bearer  {KEY}"},
        {"x-api-key": KEY},
        {"authorization": "Basic eDp5", "x-api-key": KEY},
    ],
)
async def test_ways_to_bring_a_key(http: httpx.AsyncClient, headers: dict[str, str]) -> None:
    assert (await http.post(CHAT, json=BODY, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(KEY[:-1]),
        bearer(KEY + "x"),
        bearer(KEY.upper()),
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"x-api-key": "ü-ü-ü-ü-ü-ü"},
    ],
)
async def test_no_key_gets_in_nowhere_but_where_everyone_may(
    http: httpx.AsyncClient, headers: dict[str, str], engine: FakeEngine
) -> None:
    encoded = [(name, value.encode()) for name, value in headers.items()]
    for path, methods in routes().paths.items():
        for method in methods:
            for written in (path, path + "/", path.removeprefix("/v1")):
                answer = await http.request(method, written, headers=encoded)  # type: ignore[arg-type]
                refused = answer.status_code in (401, 403)
                assert refused is (path not in OPEN_PATHS), (method, written, answer.text)
    assert (await http.get("/v1/models/org/fake", headers=encoded)).status_code == 401  # type: ignore[arg-type]
    assert not engine.asked


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        (CHAT, {"message", "type", "param", "code"}),
        ("/v1/messages", {"type", "message", "param", "code"}),
        ("/messages/count_tokens", {"type", "message", "param", "code"}),
        ("/api/chat", None),
    ],
)
async def test_refusal_at_the_door_has_the_form_of_the_path(
    http: httpx.AsyncClient, path: str, keys: set[str] | None
) -> None:
    plain = {**bearer(KEY), "content-type": "text/plain", "sec-fetch-site": "none"}
    web = {**bearer(KEY), "origin": PAGE}
    for headers, status in (({}, 401), (web, 403), (plain, 415)):
        answer = await http.post(path, headers=headers, content="{}")
        assert answer.status_code == status
        made = answer.json()
        if keys is None:
            assert isinstance(made["error"], str)
            continue
        assert made["error"].keys() == keys
        assert made.get("type") == ("error" if "messages" in path else None)
    anthropic = (await http.get("/v1/messages", headers=bearer(KEY))).json()
    assert anthropic["type"] == "error"
    ollama = (await http.get("/api/nothing", headers=bearer(KEY))).json()
    assert isinstance(ollama["error"], str)


async def test_each_key_has_its_own_doors(http: httpx.AsyncClient) -> None:
    async def status(path: str, key: str) -> int:
        return (await http.get(path, headers=bearer(key))).status_code

    assert await status("/v1/models", ADMIN) == 401
    assert await status("/debug/profile?seconds=x", KEY) == 400
    assert await status("/admin/nothing", KEY) == 404
    assert await status("/v1/models", KEY) == 200


@pytest.mark.parametrize("settings", [{"metrics_key": METRICS}])
async def test_a_key_of_the_metrics_alone(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/models")).status_code == 200
    assert (await http.get("/debug/profile?seconds=x")).status_code == 401
    answer = await http.get("/debug/profile?seconds=x", headers=bearer(METRICS))
    assert answer.status_code == 400  # it was let in


# A browser's page.


@pytest.mark.parametrize("settings", [{}])
@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_forms_and_plain_text_are_refused(
    server: HttpServer, content_type: str, engine: FakeEngine
) -> None:
    headers = {"sec-fetch-site": "same-origin"}  # of a page whose Origin was left out
    headers |= {"content-type": content_type} if content_type else {}
    async with httpx.AsyncClient(base_url=server.url) as http:
        answer = await http.post(CHAT, content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("settings", [{}])
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("LOCALHOST.:80", 200),
        ("[::1]:8000", 200),
        ("evil.test", 403),
        ("localhost.evil.test", 403),
        ("127.0.0.1.evil.test", 403),
        ("[evil.test]", 403),
        ("[", 403),
    ],
)
async def test_a_local_server_has_local_names_only(
    http: httpx.AsyncClient, host: str, status: int
) -> None:
    answer = await http.get("/v1/models", headers={"host": host})
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize("settings", [{"allow_host": ("llm.example",)}])
async def test_a_name_that_is_allowed(http: httpx.AsyncClient) -> None:
    assert (await http.get("/ready", headers={"host": "llm.example:443"})).status_code == 200
    assert (await http.get("/ready", headers={"host": "other.example"})).status_code == 403


@pytest.mark.parametrize("settings", [{"host": "0.0.0.0"}])
async def test_a_server_of_a_network_has_any_name(http: httpx.AsyncClient) -> None:
    assert (await http.get("/ready", headers={"host": "llm.example"})).status_code == 200


@pytest.mark.parametrize("settings", [{}])
async def test_pages_of_other_origins_are_refused(
    http: httpx.AsyncClient, server: HttpServer, engine: FakeEngine
) -> None:
    for origin in (PAGE, "null", "http://127.0.0.1:1"):
        asked = {"origin": origin, "access-control-request-method": "POST"}
        for method, headers in (("POST", {"origin": origin}), ("OPTIONS", asked)):
            answer = await http.request(method, CHAT, json=BODY, headers=headers)
            assert answer.status_code == 403
            assert not [name for name in answer.headers if name.startswith("access-control")]
    assert not engine.asked
    own = await http.post(CHAT, json=BODY, headers={"origin": server.url})
    assert own.status_code == 200


@pytest.mark.parametrize("settings", [{"allow_origin": (PAGE,), "api_key": (KEY,)}])
async def test_an_origin_that_is_allowed(http: httpx.AsyncClient) -> None:
    asked = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-lang",
    }
    answer = await http.options(CHAT, headers=asked)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-stainless-lang" in answer.headers["access-control-allow-headers"]
    for body in (BODY, {**BODY, "stream": True}, {**BODY, "model": "none"}):
        sent = await http.post(CHAT, json=body, headers={"origin": PAGE, **bearer(KEY)})
        assert sent.headers["access-control-allow-origin"] == PAGE
        assert sent.headers["vary"] == "origin"
    refused = await http.post(CHAT, json=BODY, headers={"origin": PAGE})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == PAGE  # the page can read why


@pytest.mark.parametrize("settings", [{"root_path": "/llm/"}])
@pytest.mark.parametrize("path", ["/llm/v1/models", "/v1/models", "/llm/models/", "/models"])
async def test_paths_with_and_without_root_and_version(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path)).json()["data"][0]["id"] == "org/fake"


# Limits of a key.


def test_a_bucket_refuses_what_is_over_its_limit_and_says_for_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr("pyengine.http.access.rates.time.monotonic", lambda: now[0])
    rates, limits = Rates.make(), KeyLimits(requests=6, tokens=100)
    other_process = Rates(rates.descriptor)
    assert [rates.admit(3, limits) for _ in range(3)] == [0, 0, 0]
    assert [other_process.admit(3, limits) for _ in range(3)] == [0, 0, 0]
    assert rates.admit(3, limits) == pytest.approx(10)
    assert rates.admit(4, limits) == 0  # another key
    now[0] += 10.1
    assert rates.admit(3, limits) == 0
    now[0] += 60
    rates.charge(3, limits, 250)
    assert other_process.admit(3, limits) == pytest.approx(60 * 151 / 100)
    now[0] += 60 * 151 / 100 + 0.1
    assert rates.admit(3, limits) == 0
    assert [rates.admit(5, KeyLimits()) for _ in range(1000)] == [0] * 1000


@pytest.mark.parametrize("settings", [{}])
async def test_a_key_over_its_limits_gets_429(server: HttpServer, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[keys]]\nname = "requests"\nkey = "{KEY}"\nrequests_per_minute = 2\n'
        f'[[keys]]\nname = "tokens"\nkey = "{OTHER}"\ntokens_per_minute = 20\n'
    )
    server.app.door.apply(AccessSource(ServerConfig(api_key_file=str(path))).rules())
    for key, admitted, rate in ((KEY, 2, "2 requests"), (OTHER, 1, "20 tokens")):
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=key, max_retries=0
        ) as client:
            for _ in range(admitted):
                await client.chat.completions.create(**BODY)
            with pytest.raises(openai.RateLimitError) as refused:
                await client.chat.completions.create(**BODY)
            with pytest.raises(openai.RateLimitError):
                await client.responses.retrieve("resp_1")  # which reads the store
            await client.models.list()
        assert refused.value.code == "rate_limit_exceeded"
        assert f"its {rate} a minute" in refused.value.message
        assert 0 < int(refused.value.response.headers["retry-after"]) <= 300


async def test_a_key_asks_for_its_own_priorities_only(
    server: HttpServer, engine: FakeEngine, tmp_path: Path
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[keys]]\nname = "usual"\nkey = "{KEY}"\n'
        f'[[keys]]\nname = "urgent"\nkey = "{OTHER}"\npriority = -5\n'
    )
    server.app.door.apply(AccessSource(ServerConfig(api_key_file=str(path))).rules())
    for key, least in ((KEY, 0), (OTHER, -5)):
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key) as client:
            for priority in (least, 7):
                await client.chat.completions.create(**BODY, extra_body={"priority": priority})
            with pytest.raises(openai.BadRequestError, match=f"must be {least} or more") as refused:
                await client.chat.completions.create(**BODY, extra_body={"priority": least - 1})
        assert refused.value.param == "priority"
    assert [asked.priority for asked in engine.asked] == [0, 7, -5, 7]


async def test_keys_of_another_salt_share_no_cached_prefixes(
    server: HttpServer, engine: FakeEngine, tmp_path: Path
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[[keys]]\nname = "a"\nkey = "{KEY}"\ncache_salt = "team"\n'
        f'[[keys]]\nname = "b"\nkey = "{OTHER}"\ncache_salt = "team"\n'
        f'[[keys]]\nname = "c"\nkey = "{KEY}-c"\ncache_salt = "other"\n'
        f'[[keys]]\nname = "d"\nkey = "{KEY}-d"\n'
    )
    server.app.door.apply(AccessSource(ServerConfig(api_key_file=str(path))).rules())
    asked: list[dict[str, str]] = [{}, {"cache_salt": "mine"}]
    for key in (KEY, OTHER, f"{KEY}-c", f"{KEY}-d"):
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key) as client:
            for extra in asked:
                await client.chat.completions.create(**BODY, extra_body=extra)
    salts = [each.cache_salt for each in engine.asked]
    assert salts[:2] == salts[2:4]
    assert salts[6:] == [None, "mine"]
    assert len(set(salts)) == 6


# The key file.


def test_a_key_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    digest = hashlib.sha256(OTHER.encode()).hexdigest()
    path.write_text(
        f'[[keys]]\nname = "alice"\nkey = "{KEY}"\nrequests_per_minute = 60\n'
        f'[[keys]]\nname = "bob"\nkey_sha256 = "{digest.upper()}"\n'
    )
    alice, bob = read_keys(path)
    assert (alice.name, alice.limits) == ("alice", KeyLimits(60, None))
    assert (bob.name, bob.digest, bob.limits) == ("bob", digest, KeyLimits())
    assert KEY not in repr(alice)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("keys = ", "Invalid value"),
        ("[[keys]]\nname = 'a'", "needs one of 'key' and 'key_sha256'"),
        ("[[keys]]\nname = 'a'\nkey = 'secret'", "at least 8 characters"),
        ("[[keys]]\nname = 'a'\nkey = 'secret secret'", "visible ASCII"),
        ("[[keys]]\nname = 'a'\nkey = 'secret-1'\nlimit = 5", "unknown field `limit`"),
        ("[[keys]]\nname = 'a'\nkey = 'secret-1'\ntokens_per_minute = 0", "at least 1"),
        ("[[keys]]\nname = 'a'\nkey_sha256 = 'secret'", "64 hex digits"),
        ("[[keys]]\nname = ''\nkey = 'secret-1'", "printable name"),
        (2 * "[[keys]]\nname = 'a'\nkey = 'secret-1'\n", "the same name twice"),
    ],
)
def test_a_key_file_that_is_wrong_is_refused_without_showing_a_key(
    text: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_keys(path)
    assert says in str(refused.value)
    assert "secret" not in str(refused.value).replace(str(path), "")


async def test_a_key_file_is_read_again_when_it_changes(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyengine.http.serving.reload.POLL_S", 0.01)
    path = tmp_path / "keys.toml"
    path.write_text(f'[[keys]]\nname = "a"\nkey = "{KEY}"\n')
    said: asyncio.Queue[str] = asyncio.Queue()
    config = ServerConfig(port=0, api_key_file=str(path))
    serving = asyncio.create_task(serve(engine, config, announce=said.put_nowait))
    url = (await said.get()).split()[2].rstrip(",")

    async def wait_for(key: str, status: int) -> None:
        async with httpx.AsyncClient(base_url=url) as http, asyncio.timeout(20):
            while (await http.get("/v1/models", headers=bearer(key))).status_code != status:
                pass

    await wait_for(KEY, 200)
    path.write_text(f'[[keys]]\nname = "b"\nkey = "{OTHER}"\n')
    await wait_for(OTHER, 200)
    await wait_for(KEY, 401)
    path.write_text("malformed")
    await wait_for(OTHER, 200)
    path.unlink()
    await wait_for(OTHER, 200)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "")))


def test_the_configuration_and_the_limits_have_the_same_defaults() -> None:
    assert Limits.of(ServerConfig()) == Limits()


def test_settings_do_not_show_keys() -> None:
    config = ServerConfig(api_key=(KEY,), admin_key=ADMIN, metrics_key=METRICS)
    assert "sk-" not in repr(config)
    assert "sk-" not in repr(AccessSource(config).rules())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"api_key": ("short",)}, "'api_key' must have at least 8"),
        ({"admin_key": "short"}, "'admin_key' must have at least 8"),
        ({"allow_origin": ("example.com",)}, "'allow_origin' must be an origin"),
        ({"allow_origin": ("https://example.com/x",)}, "'allow_origin' must be an origin"),
        ({"root_path": "llm"}, "'root_path'"),
        ({"port": 70000}, "'port'"),
        ({"max_choices": 0}, "'max_choices'"),
        ({"drain_seconds": float("nan")}, "'drain_seconds'"),
        ({"api_key_file": "/no/such"}, "'api_key_file' must be a file"),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        AccessSource(ServerConfig(**settings)).rules()
    assert says in str(refused.value)
    assert "short" not in str(refused.value)
