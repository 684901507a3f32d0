"""API keys: their names, their limits, and which of them a request brings.

A key itself is kept nowhere: only its SHA-256. A request's key is found by that, so that the time
it takes tells nothing about a key, and no log, error or dump can show one.
"""

import hashlib
import hmac
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from pyengine.errors import ConfigError

MIN_KEY = 8
"""Fewest characters of a key."""


class KeyLimits(msgspec.Struct, frozen=True):
    """Limits of a key within a minute; None: no limit.

    Attributes:
        requests: Requests that generate.
        tokens: Tokens of prompts and answers.
    """

    requests: int | None = None
    tokens: int | None = None


class ApiKey(msgspec.Struct, frozen=True):
    """A key that lets in.

    Attributes:
        name: What logs call it, and the tenant that its requests are charged to.
        digest: SHA-256 of the key, in hexadecimal.
        limits: What it may use.
        priority: The best priority that its requests may ask for; lower is better.
        cache_salt: Its requests share cached prefixes with those of keys of the same salt alone.
        slot: Its place among the measured rates.
    """

    name: str
    digest: str
    limits: KeyLimits = KeyLimits()
    priority: int = 0
    cache_salt: str = ""
    slot: int = 0

    def salted(self, salt: str | None) -> str | None:
        """The salt of a request that asks for ``salt``."""
        return f"{self.cache_salt}\0{salt or ''}" if self.cache_salt else salt


class KeyRing:
    """The keys that let in. Immutable."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self.keys = tuple(keys)
        self._by_digest = {key.digest: key for key in self.keys}

    def find(self, given: str) -> ApiKey | None:
        """The key that ``given`` is, or None."""
        digest = digest_of(given)
        found = self._by_digest.get(digest)
        return found if found is not None and hmac.compare_digest(found.digest, digest) else None


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One ``[[keys]]`` of a key file: ``key``, or the SHA-256 of it."""

    name: str
    key: str | None = None
    key_sha256: str | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    priority: int = 0
    cache_salt: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[_Entry]


def digest_of(key: str) -> str:
    """The SHA-256 of a key, in hexadecimal."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def plain_keys(keys: Sequence[str], name: str) -> list[ApiKey]:
    """Keys without limits, called ``name``, or ``name-1`` and so on where there are several.

    Raises:
        ConfigError: One is too short or has spaces; it is not shown.
    """
    for key in keys:
        _check(key, f"'{name.replace('-', '_')}'")
    if len(keys) == 1:
        return [ApiKey(name, digest_of(keys[0]))]
    return [ApiKey(f"{name}-{number}", digest_of(key)) for number, key in enumerate(keys, 1)]


def read_keys(path: str | Path) -> list[ApiKey]:
    """The keys of a TOML file::

        [[keys]]
        name = "alice"
        key = "..."                # or key_sha256
        requests_per_minute = 60   # or left out: no limit
        tokens_per_minute = 20000
        priority = -10             # the best that it may ask for; left out: 0
        cache_salt = "alice"       # whose cached prefixes it shares; left out: all that have none

    Raises:
        ConfigError: It cannot be read, or is not that; no key is shown.
    """
    try:
        with Path(path).open("rb") as file:
            entries = msgspec.convert(tomllib.load(file), _File).keys
    except (OSError, ValueError) as error:  # malformed TOML and wrong types are ValueErrors
        raise ConfigError(f"the key file {path}: {error}", param="api_key_file") from None
    keys = [_read_entry(entry, f"the key file {path}: key {entry.name!r}") for entry in entries]
    for what, values in (("name", [k.name for k in keys]), ("key", [k.digest for k in keys])):
        if len(set(values)) < len(values):
            raise ConfigError(
                f"the key file {path} has the same {what} twice", param="api_key_file"
            )
    return keys


def _read_entry(entry: _Entry, where: str) -> ApiKey:
    if not entry.name or not entry.name.isprintable():
        raise ConfigError(f"{where} needs a printable name", param="api_key_file")
    if (entry.key is None) == (entry.key_sha256 is None):
        raise ConfigError(f"{where} needs one of 'key' and 'key_sha256'", param="api_key_file")
    limits = (entry.requests_per_minute, entry.tokens_per_minute)
    if any(limit is not None and limit < 1 for limit in limits):
        raise ConfigError(f"{where}: a limit must be at least 1", param="api_key_file")
    if entry.key is not None:
        _check(entry.key, where)
        digest = digest_of(entry.key)
    else:
        digest = (entry.key_sha256 or "").lower()
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise ConfigError(f"{where}: 'key_sha256' must be 64 hex digits", param="api_key_file")
    return ApiKey(entry.name, digest, KeyLimits(*limits), entry.priority, entry.cache_salt)


def _check(key: str, where: str) -> None:
    # RFC 6750 and header syntax: what cannot be sent can never let in.
    if len(key) < MIN_KEY or not all("!" <= character <= "~" for character in key):
        raise ConfigError(
            f"{where} must have at least {MIN_KEY} characters, all of them visible ASCII",
            param="api_key",
        )
