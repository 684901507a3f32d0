"""The endpoint does what its description says: every path, every status, every answer."""

import subprocess
import sys
from pathlib import Path

import httpx
import jsonschema
import pytest

from pyengine.http.app import routes
from pyengine.http.operations.paths import operations
from tests.programs import served


def test_the_description_has_every_path() -> None:
    paths = {(method, path) for path, methods in routes().paths.items() for method in methods}
    assert set(operations()) == {pair for pair in paths if pair[1] != "/"}


async def test_the_description_and_the_page(http: httpx.AsyncClient) -> None:
    answer = await http.get("/openapi.json")
    spec = answer.json()
    assert spec["openapi"] == "3.1.0"
    for schema in spec["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    fields = spec["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "temperature", "typical_p"} <= set(fields)
    page = await http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    # Nothing comes from elsewhere.
    assert "http://" not in page.text
    assert "https://" not in page.text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_schemathesis_finds_no_answer_outside_the_description(tmp_path: Path) -> None:
    arguments = ("--port", "0", "--device", "simulated", "--simulated-step-ms", "0")
    with served(*arguments, "--max-context", "256") as server:
        done = subprocess.run(
            [
                Path(sys.executable).with_name("schemathesis"), "run",
                f"{server.url()}/openapi.json",
                "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,"
                "response_schema_conformance",
                "--exclude-path", "/debug/profile", "--phases", "examples,coverage,fuzzing",
                "--max-examples", "60", "--seed", "1", "--request-timeout", "20",
                "--generation-deterministic", "--suppress-health-check", "all", "--no-color",
            ],
            cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
