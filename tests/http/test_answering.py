"""All APIs that generate text answer in one way."""

import ast

from tests.programs import REPOSITORY

HTTP = REPOSITORY / "pyengine/http"
# Vectors, scores of documents and decisions are no answers of text, and a summary is an item of
# one; jobs in the background stream to a store.
OTHERS = {
    "openai/decisions.py",
    "openai/pooling/embeddings.py",
    "openai/pooling/relevance.py",
    "openai/responses/compact.py",
}
BACKGROUND = "openai/responses/background.py"


def _callers(owner: str, name: str) -> set[str]:
    """The files in which a method of ``owner`` is called."""
    return {
        str(path.relative_to(HTTP))
        for path in HTTP.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func) == f"{owner}.{name}"
    }


def test_dialects_leave_generating_and_streaming_to_answering() -> None:
    assert _callers("exchange", "generate") == {"answering.py", *OTHERS}
    assert _callers("sse", "stream") == {"answering.py", BACKGROUND}
