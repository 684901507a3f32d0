"""Listening sockets: of a port, of several processes on one port, or of a path (unix sockets)."""

import errno
import os
import socket
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from pyengine.errors import ConfigError
from pyengine.settings.server import ServerConfig


def url_of(listener: socket.socket, host: str, scheme: str = "http") -> str:
    """The URL of ``listener``, which was made for ``host``; of a path ``unix:PATH``."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{listener.getsockname()[1]}"


def listen(host: str, port: int, backlog: int, *, shared: bool = False) -> socket.socket:
    """A listening socket; where ``shared``, one of several on the port, each with its own queue.

    The kernel spreads connections evenly over the sockets that share a port.

    Raises:
        ConfigError: The port is in use, or the address is not this machine's.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"port {port} is not between 0 and 65535", param="port")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(
            address[:2],
            family=family,
            backlog=backlog,
            reuse_port=shared,
            # Every address is that of either family.
            dualstack_ipv6=address[0] == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use; stop what listens there, or take another port",
                param="port",
            ) from None
        raise ConfigError(f"cannot listen on {host}:{port}: {error}", param="host") from error
    # Connections inherit it. Without, a small chunk waits for the client to acknowledge the one
    # before, which it puts off for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setblocking(False)
    return listener


def listen_at(path: str, backlog: int) -> socket.socket:
    """A listening unix socket; one that a dead process has left at ``path`` is replaced.

    Who may connect is for the permissions of its folder and the umask to say.

    Raises:
        ConfigError: Another process listens there, or something else is there.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove_stale(path)
        listener.bind(path)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {path}: {error}", param="uds") from error
    listener.setblocking(False)
    return listener


def unknown_listener(unix: bool) -> socket.socket:
    """A listening socket of no use: on a port of loopback that no client is told, or on no path."""
    if not unix:
        return listen("127.0.0.1", 0, 1)
    with tempfile.TemporaryDirectory() as folder:
        return listen_at(f"{folder}/socket", 1)


def _remove_stale(path: str) -> None:
    if not Path(path).exists():
        return
    if not stat.S_ISSOCK(Path(path).stat().st_mode):
        raise OSError("something that is no socket is there")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
        else:
            raise OSError("another process listens there")


def listeners(config: ServerConfig, backlog: int) -> list[socket.socket]:
    """The sockets of each of ``config.workers`` for requests. Of a path all have the same one.

    Raises:
        ConfigError: As :func:`listen` and :func:`listen_at`.
    """
    if config.uds is not None:
        listener = listen_at(config.uds, backlog)
        return [listener, *(listener.dup() for _ in range(config.workers - 1))]
    return on_port(config.host, config.port, backlog, config.workers)


def metrics_listeners(config: ServerConfig, backlog: int) -> list[socket.socket] | None:
    """The sockets of each of ``config.workers`` for metrics, if they have a port of their own."""
    if config.metrics_port is None:
        return None
    return on_port(config.host, config.metrics_port, backlog, config.workers)


def on_port(host: str, port: int, backlog: int, count: int) -> list[socket.socket]:
    """Listening sockets that share a port, which no other process listens on."""
    if count == 1:
        return [listen(host, port, backlog)]
    with listen(host, port, backlog) as alone:  # sharing would not notice a port in use
        port = alone.getsockname()[1]
    return [listen(host, port, backlog, shared=True) for _ in range(count)]


def remove_path(config: ServerConfig) -> None:
    """Remove the unix socket of a server that has ended."""
    if config.uds is not None:
        with suppress(OSError):
            os.unlink(config.uds)  # noqa: PTH108


def reachable(host: str) -> str:
    """An address at which this machine reaches a server that listens on ``host``."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
