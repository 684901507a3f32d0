"""Optional parts of the endpoint: it works without them, and packages outside add theirs."""

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pyengine.http import extensions
from pyengine.http.fields.table import table
from pyengine.http.operations import openapi
from pyengine.http.operations.paths import operations, routes
from tests.programs import python

CACHES = (extensions.extensions, routes, table, operations, openapi.document)

PACKAGE = """
import msgspec

from pyengine.http.extensions import Extension
from pyengine.http.fields.effects import Hint
from pyengine.http.operations.operation import Operation

class Greeting(msgspec.Struct, forbid_unknown_fields=True):
    name: str

_decoder = msgspec.json.Decoder(Greeting)

async def greet(exchange):
    "Greet."
    greeting = await exchange.decode(_decoder)
    exchange.reply(msgspec.json.encode({"hello": greeting.name, "warned": list(exchange.warnings)}))

EXTENSION = Extension(
    paths={"/greeting": {"POST": Operation(greet, dict[str, str], Greeting)}},
    fields={Greeting: {"mood": Hint()}},
    error_forms={"/greeting": lambda error: b'{"sorry": "yes"}'},
)
"""


@pytest.fixture
def fresh() -> Iterator[None]:
    """Extensions are looked for again, now and afterwards."""
    for cached in CACHES:
        cached.cache_clear()
    yield
    sys.modules.pop("greetings", None)
    for cached in CACHES:
        cached.cache_clear()


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    """A package with an entry point is installed, as `pip install` leaves it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "greetings.py").write_text(PACKAGE)
    about = tmp_path / "greetings-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
    entry = f"[{extensions.ENTRY_POINTS}]\ngreetings = greetings:EXTENSION\n"
    (about / "entry_points.txt").write_text(entry)


@pytest.fixture
def none(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    """The endpoint has no extension."""
    monkeypatch.setattr(extensions, "BUILT_IN", ())


@pytest.mark.usefixtures("outside")
async def test_package_outside_adds_a_path(http: httpx.AsyncClient) -> None:
    answer = await http.post("/greeting", json={"name": "Ada", "mood": "good"})
    assert answer.json()["hello"] == "Ada"
    assert "'mood' cannot change this answer" in answer.json()["warned"][0]
    async with httpx.AsyncClient(base_url=http.base_url) as plain:  # not checked
        refused = await plain.post("/greeting", json={"name": 1})
    assert refused.json() == {"sorry": "yes"}
    assert (await http.get("/api/version")).status_code == 200
    described = (await http.get("/openapi.json")).json()
    assert described["paths"]["/greeting"]["post"]["summary"] == "Greet."


@pytest.mark.usefixtures("none")
async def test_endpoint_works_without_extensions(http: httpx.AsyncClient) -> None:
    body = {"model": "org/fake", "messages": [{"role": "user", "content": "hi"}]}
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    assert routes().find("/") is None
    assert routes().find("/api/version") is None
    assert not [
        path for path in (await http.get("/openapi.json")).json()["paths"] if "/api" in path
    ]


def test_endpoint_does_not_import_extensions_to_start() -> None:
    loaded = (
        "import sys, pyengine.http.serving.server; "
        "print([name for name in sys.modules if '.ollama' in name or 'http.page' in name])"
    )
    assert python(loaded).strip() == "[]"
