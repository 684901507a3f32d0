"""Data of others that tests read: small files in ``tests/data``, larger ones fetched."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.reference_data import MissingDataError, reference_file

DATA = Path(__file__).parent / "data"
SCHEMA_SUITE = DATA / "json-schema-test-suite"
OPENAPI = DATA / "openai" / "openapi-subset.json"

# What a skip's reason begins with; the end of a run lists these.
MISSING = "missing data: "


def openapi() -> dict[str, Any]:
    """OpenAI's specification of the endpoints that are served here."""
    spec: dict[str, Any] = json.loads(OPENAPI.read_text(encoding="utf-8"))
    return spec


def fetched(name: str) -> Path:
    """The path of a file of ``tools.reference_data``; the test is skipped if it is not here."""
    try:
        return reference_file(name)
    except MissingDataError as error:
        pytest.skip(f"{MISSING}{error}")
