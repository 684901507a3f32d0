"""Which key may use which paths: the part of the configuration that HTTP workers need."""

import ipaddress

import msgspec

from pyengine.errors import ConfigError
from pyengine.http.access.keys import ApiKey, digest_of, plain_keys
from pyengine.settings.server import ServerConfig


class AccessRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of the door. They hold no key, only digests.

    Attributes:
        keys: The keys that let in; None lets everyone in.
        admin: Digest of the key of ``/admin``; None closes it.
        metrics: Digest of the key of ``/metrics`` and ``/debug``; None goes by ``keys``.
        origins: Origins of web pages that may use the server; ``*`` is any.
        hosts: Names that a request's Host header may have; None is any.
        root_path: Path at which a proxy has put the server.
    """

    keys: tuple[ApiKey, ...] | None = None
    admin: str | None = None
    metrics: str | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = None
    root_path: str = ""

    @classmethod
    def of(cls, config: ServerConfig, keys: tuple[ApiKey, ...] | None) -> "AccessRules":
        """The rules of ``config``, with the keys that let in.

        Raises:
            ConfigError: A key is too short, or an origin is none.
        """
        for origin in config.allow_origin:
            if origin != "*" and ("://" not in origin or origin.count("/") != 2):
                raise ConfigError(
                    f"'allow_origin' must be an origin such as https://example.com, or *, not "
                    f"{origin!r}",
                    param="allow_origin",
                )
        return cls(
            keys=keys,
            admin=_digest(config.admin_key, "admin_key"),
            metrics=_digest(config.metrics_key, "metrics_key"),
            origins=tuple(origin.lower() for origin in config.allow_origin),
            hosts=_hosts(config),
            root_path=config.root_path.rstrip("/"),
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address or name."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _hosts(config: ServerConfig) -> tuple[str, ...] | None:
    """Names in the Host header that are taken; None is any, as there is a network in between, or a
    file, which no web page reaches.
    """
    given = tuple(host.lower() for host in config.allow_host)
    if "*" in given:
        return None
    local = is_loopback(config.host) and config.uds is None
    return given if given or local else None


def _digest(key: str | None, name: str) -> str | None:
    if key is None:
        return None
    plain_keys([key], name)  # checks it
    return digest_of(key)
