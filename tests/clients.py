"""Clients of a server in another process: openai's, and streams that are long enough to be cut."""

import threading

import openai
from openai.types import Completion


def client_of(url: str, key: str = "none") -> openai.OpenAI:
    """OpenAI's client of the server at ``url``; it tries nothing twice."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def begun(client: openai.OpenAI, tokens: int) -> "openai.Stream[Completion]":
    """A stream of exactly so many tokens whose first chunk was read."""
    chunks = client.completions.create(
        model="pyengine-demo",
        prompt="Go on",
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    next(chunks)
    return chunks


def tokens_of(chunks: "openai.Stream[Completion]") -> int:
    """The tokens of a stream, which its last chunk counts, once it has ended."""
    usage = [chunk.usage for chunk in chunks][-1]
    assert usage is not None
    return usage.completion_tokens


class Reader(threading.Thread):
    """Reads a stream to its end.

    Attributes:
        error: What it broke with, if it did.
    """

    def __init__(self, chunks: "openai.Stream[Completion]") -> None:
        super().__init__()
        self.error: Exception | None = None
        self._chunks = chunks
        self.start()

    def run(self) -> None:
        """Read."""
        try:
            for _ in self._chunks:
                pass
        except Exception as error:  # noqa: BLE001 - how it breaks is the client library's matter
            self.error = error

    def wait(self, seconds: float = 60.0) -> Exception | None:
        """What the stream broke with, once it has ended."""
        self.join(seconds)
        assert not self.is_alive(), "the stream does not end"
        return self.error
