"""Word to the service manager that started the server: sd_notify(3), as systemd has it.

``Type=notify`` units use it, and so does the process of ``--replicas``.
"""

import logging
import os
import socket

VARIABLE = "NOTIFY_SOCKET"
log = logging.getLogger("pyengine.http")


def notify(**variables: str) -> None:
    """Send ``variables``, as ``READY="1"``; without a service manager, do nothing.

    Raises:
        OSError: The service manager's socket is gone.
    """
    address = os.environ.get(VARIABLE)
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # a name that is in no file system
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        lines = "\n".join(f"{name}={value}" for name, value in variables.items())
        sender.sendto(lines.encode(), address)


def notify_ready(model: str, url: str) -> None:
    """Say that requests are taken, at ``url``; logs it if the service manager is gone."""
    try:
        notify(READY="1", STATUS=f"{model} at {url}", X_URL=url)
    except OSError as error:
        log.warning("%s=%s: %s", VARIABLE, os.environ[VARIABLE], error)
