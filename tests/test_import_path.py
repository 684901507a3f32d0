"""The processes of a server import nothing from the folder in which it was started."""

import asyncio
import signal
import sys
from pathlib import Path

import httpx
import pytest

from tests.programs import environment, served

# Modules of the standard library that the engine, the workers or what they use import.
SHADOWED = ("random", "queue", "logging", "types", "secrets", "tokenize", "calendar", "numpy")

# As the command `pyengine` does it, which has its own folder on the path and not the current one.
PROGRAM = (sys.executable, "-P", "-m", "pyengine")


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_modules_beside_a_server_are_not_run(tmp_path: Path, workers: str) -> None:
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module beside the server ran')")
    serve = ("--port", "0", "--device", "simulated", "--workers", workers)
    with served(*serve, command=PROGRAM, cwd=tmp_path, env=environment()) as server:
        url = await asyncio.to_thread(server.url)
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            asked = {"model": "pyengine-demo", "prompt": "Go on", "max_tokens": 3}
            assert (await http.post("/v1/completions", json=asked)).status_code == 200
        assert server.end(signal.SIGTERM) == 0
    assert "ran" not in "".join(server.output)
