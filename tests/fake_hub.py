"""A hub of models on this machine, as huggingface_hub asks it: revisions, lists of files, files.

It can end an answer in the middle, and remembers what it was asked for.
"""

import hashlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.programs import START_S, environment

_REVISION = re.compile(r"/api/models/([^/]+/[^/]+)/revision/(.+)")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


def commit(revision: str) -> str:
    """The commit that a branch or tag names; a commit names itself."""
    return revision if len(revision) == 40 else hashlib.sha1(revision.encode()).hexdigest()


@dataclass
class FakeHub:
    """The repositories of a hub.

    Attributes:
        files: Bytes by repository, commit and path.
        token: Who asks must have it; None: anyone may.
        breaks: Answers with the file of that name end after so many bytes, once.
        asked: The method, path and range of each request for a file.
    """

    files: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    token: str | None = None
    breaks: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    def add(self, repository: str, folder: Path, revision: str = "main") -> None:
        """A repository with the files of ``folder``, at a revision."""
        for path in folder.iterdir():
            self.files[repository, commit(revision), path.name] = path.read_bytes()

    def downloads(self, path: str | None = None) -> list[str | None]:
        """The ranges that were asked for, of one file or of all."""
        return [at for method, name, at in self.asked if method == "GET" and path in (None, name)]

    def run(self, program: str, home: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        """A Python program whose hub this is, with a cache of its own."""
        places = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        return subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env=environment(**places, HF_HUB_DISABLE_TELEMETRY="1", **variables),
            timeout=START_S,
            check=False,
        )


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A hub that listens until the block ends."""
    hub = FakeHub()

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        path, hub = unquote(urlsplit(self.path).path), self.hub
        if hub.token is not None and self.headers["authorization"] != f"Bearer {hub.token}":
            self._refuse(401, "GatedRepo", "access to this model is restricted")
        elif found := _REVISION.fullmatch(path):
            self._revision(found[1], commit(found[2]))
        elif found := _TREE.fullmatch(path):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": _digest(data)}
                for (repository, at, name), data in hub.files.items()
                if (repository, at) == (found[1], found[2])
            ]
            self._send(200, json.dumps(tree).encode())
        elif (found := _FILE.fullmatch(path)) and (key := found.groups()) in hub.files:
            self._file(key[1], key[2], hub.files[key[0], key[1], key[2]])
        else:
            self._refuse(404, "EntryNotFound", "there is no such file")

    def _revision(self, repository: str, at: str) -> None:
        names = [key[2] for key in self.hub.files if key[:2] == (repository, at)]
        if names:
            siblings = [{"rfilename": name} for name in names]
            said = {"id": repository, "sha": at, "siblings": siblings, "private": False}
            self._send(200, json.dumps(said).encode())
        elif any(key[0] == repository for key in self.hub.files):
            self._refuse(404, "RevisionNotFound", f"there is no revision {at}")
        else:
            self._refuse(404, "RepoNotFound", "there is no such repository")

    def _file(self, at: str, name: str, data: bytes) -> None:
        wanted = self.headers["range"]
        self.hub.asked.append((self.command, name, wanted))
        own = {"etag": f'"{_digest(data)}"', "x-repo-commit": at, "accept-ranges": "bytes"}
        status, total = 200, len(data)
        if wanted is not None and self.command == "GET":
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            end = int(last) + 1 if last else total
            status, data = 206, data[int(first) : end]
            own["content-range"] = f"bytes {first}-{end - 1}/{total}"
        broken = self.hub.breaks.pop(name, None) if self.command == "GET" else None
        self._send(status, data, own, broken)

    def _refuse(self, status: int, code: str, text: str) -> None:
        self._send(status, b"{}", {"x-error-code": code, "x-error-message": text})

    def _send(
        self,
        status: int,
        data: bytes,
        headers: dict[str, str] | None = None,
        broken: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(data if broken is None else data[:broken])
        if broken is not None:
            self.close_connection = True


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
