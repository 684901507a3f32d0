"""The bench of serving on the CPU: what its servers leave behind, and which chunks it counts."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from benches.cpu_serving.load import TEXT
from tests.programs import REPOSITORY

# A server whose /health is a file; it is frozen, and the program waits.
FREEZE = """
import sys
from pathlib import Path
from benches.cpu_serving.servers import start

folder = Path(sys.argv[1])
(folder / "health").touch()
files = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(folder)]
command = lambda folder, gguf, dtype, port: [*files, str(port)]
server = start("files", command, folder, folder, "bfloat16", folder / "log")
with server.running():
    pass
print(server.process.pid, flush=True)
sys.stdin.read()
"""


def test_a_killed_bench_leaves_no_frozen_server(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FREEZE, str(tmp_path)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as bench:
        assert bench.stdout is not None
        server = os.pidfd_open(int(bench.stdout.readline()))
        try:
            bench.send_signal(signal.SIGKILL)
            bench.wait()
            assert select.select([server], [], [], 60) == ([server], [], [])
        finally:
            os.close(server)


def test_chunks_with_text_are_tokens() -> None:
    token = b'data: {"choices":[{"index":0,"text":"\\"","finish_reason":null}]}'
    last = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}'
    usage = b'data: {"choices":[],"usage":{"completion_tokens":64}}'
    assert [bool(TEXT.search(line)) for line in (token, last, usage)] == [True, False, False]
