"""The endpoint does what its description says: every path, every status, every answer."""

import subprocess
import sys
from pathlib import Path

import httpx
import jsonschema
import msgspec
import pytest

from pyengine.http.operations.meanings import _NAMES, documented, structs_within
from pyengine.http.operations.openapi import document
from pyengine.http.operations.paths import operations, routes
from tests.programs import served


def test_every_operation_says_what_it_does() -> None:
    described = {
        (method, path): operation.summary
        for path, methods in operations().items()
        for method, operation in methods.items()
    }
    assert [where for where, summary in described.items() if not summary.endswith(".")] == []
    paths = msgspec.json.decode(document(routes(), ("some-model",)))["paths"]
    assert {(m.upper(), path) for path, of in paths.items() for m in of} == set(described)


def test_parameters_of_paths_and_queries_are_described() -> None:
    paths = msgspec.json.decode(document(routes(), ("some-model",)))["paths"]
    given = paths["/v1/chat/completions/{completion}/messages"]["get"]["parameters"]
    assert [each["name"] for each in given] == ["completion", "after", "limit", "order"]
    limit = given[2]["schema"]
    assert (limit["type"], limit["minimum"], limit["maximum"]) == ("integer", 1, 100)
    asked = paths["/v1/chat/completions"]["get"]["parameters"]
    assert {"name", "in", "schema", "description"} <= set(asked[-1])
    assert {each["name"]: each.get("style") for each in asked}["metadata"] == "deepObject"


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


def test_every_field_of_a_request_is_described() -> None:
    """In the description; and no docstring describes a field that is not there."""
    schemas = msgspec.json.decode(document(routes(), ("some-model",)))["components"]["schemas"]
    described = [op for methods in operations().values() for op in methods.values()]
    requests = {op.request for op in described if op.request is not None}
    kinds = {kind for request in requests for kind in structs_within(request)}
    fields = [(kind, field.encode_name) for kind in kinds for field in msgspec.structs.fields(kind)]
    assert len(fields) > 400
    undescribed = [
        f"{kind.__name__}.{name}"
        for kind, name in fields
        if not schemas[kind.__name__]["properties"][name].get("description")
    ]
    assert undescribed == []
    assert set(_NAMES) <= {name for _, name in fields}
    for kind in kinds:
        assert documented(kind).keys() <= set(kind.__struct_encode_fields__), kind
    assert "between 0 and 2" in schemas["ChatRequest"]["properties"]["temperature"]["description"]


async def test_examples_of_the_description_are_answered(http: httpx.AsyncClient) -> None:
    # The engine of these tests has no vectors and no logits.
    vectors = ("/v1/embeddings", "/v1/rerank", "/v1/decisions")
    asked = 0
    for path, methods in (await http.get("/openapi.json")).json()["paths"].items():
        for operation in methods.values():
            content = operation.get("requestBody", {}).get("content", {})
            for media in content.values():
                if "example" in media and path not in vectors:
                    answer = await http.post(path, json=media["example"])
                    assert answer.status_code == 200, (path, answer.text)
                    asked += 1
    assert asked >= 4


@pytest.mark.slow
@pytest.mark.timeout(600)
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
                "--max-examples", "20", "--seed", "1", "--request-timeout", "20",
                "--generation-deterministic", "--suppress-health-check", "all", "--no-color",
            ],
            cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
