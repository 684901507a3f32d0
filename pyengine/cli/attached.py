"""Asking a running server for what it keeps about itself, below ``/debug``."""

from typing import TypeVar

import click

Answer = TypeVar("Answer")


def ask(url: str, path: str, key: str | None, timeout: float, answer: type[Answer]) -> Answer:
    """The answer of the server at ``url`` to ``GET path``.

    Raises:
        click.UsageError: It is no URL.
        ConfigError: The server does not answer, or is none of pyengine.
    """
    import urllib.error
    import urllib.request

    import msgspec

    from pyengine.errors import ConfigError

    if not url.startswith(("http://", "https://")):
        raise click.UsageError("give a URL: http://HOST:PORT")
    address = url.rstrip("/").removesuffix("/v1") + path
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        request = urllib.request.Request(address, headers=headers)
        with urllib.request.urlopen(request, timeout=timeout) as response:
            body = response.read()
    except (urllib.error.URLError, TimeoutError) as error:
        raise ConfigError(f"cannot measure {url}: {error}") from error
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{url} does not answer as a pyengine server: {error}") from error
