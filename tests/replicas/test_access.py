"""Keys and web pages where a router is before the engines."""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.clients import client_of
from tests.programs import served
from tests.replicas.conftest import SIMULATED, Replicas, value

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ALICE, PROMETHEUS = "alices-key", "prometheus-key"
PAGE, OTHER_PAGE = "https://chat.example", "https://evil.example"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """Two replicas with two HTTP workers each, that ask for keys."""
    keys: Path = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(f'[[keys]]\nname = "alice"\nkey = "{ALICE}"\n')
    options = ("--api-key-file", str(keys), "--metrics-key", PROMETHEUS, "--allow-origin", PAGE)
    with served("--port", "0", "--replicas", "2", "--workers", "2", *options, *SIMULATED) as server:
        yield Replicas(server)
        assert server.end(signal.SIGTERM) == 0


def test_the_engines_ask_for_the_key(locked: Replicas) -> None:
    with client_of(locked.url, ALICE) as client:
        answer = client.completions.create(model="pyengine-demo", prompt="Go on", max_tokens=2)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2
    with client_of(locked.url, "another-key") as client, pytest.raises(openai.AuthenticationError):
        client.completions.create(model="pyengine-demo", prompt="Go on", max_tokens=2)


def test_the_metrics_ask_for_theirs(locked: Replicas) -> None:
    def scrape(key: str | None) -> httpx.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.get(locked.metrics_url, headers=headers, timeout=30)

    assert scrape(None).status_code == 401
    assert scrape(ALICE).status_code == 403
    text = scrape(PROMETHEUS).text
    assert value(text, "pyengine_replica_up") == 2
    assert value(text, "pyengine_requests_running") == 0


def test_pages_of_the_allowed_origin_may_ask(locked: Replicas) -> None:
    def preflight(origin: str) -> httpx.Response:
        headers = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type",
        }
        return httpx.options(f"{locked.url}/v1/chat/completions", headers=headers)

    allowed = preflight(PAGE)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == PAGE
    assert "access-control-allow-origin" not in preflight(OTHER_PAGE).headers
