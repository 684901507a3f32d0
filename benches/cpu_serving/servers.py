"""The servers under test: started alone, frozen while another is measured, stopped.

Each has a *guard*, a shell that waits for the end of this process by a pipe, whatever ends it, and
then ends the server: one that is left behind frozen would keep its memory and its port for good.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 300.0
SEQUENCES = 64
SERVED = "bench"
# Without the second vLLM leaves a processor idle; of two that is half of the machine.
VLLM = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
# Ends the process group $1, frozen or not, when the other end of the pipe is closed.
GUARD = 'read -r _; kill -s KILL -- "-$1"'


@dataclass
class Server:
    """A server that runs, with all processes of its session.

    Attributes:
        name: Of the engine.
        port: Where it listens.
        process: The first of them.
        guard: Ends them if this process ends first.
        start_seconds: From the command to the first healthy answer.
    """

    name: str
    port: int
    process: subprocess.Popen[bytes]
    guard: subprocess.Popen[bytes]
    start_seconds: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which the server runs; outside of it, it is frozen."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def memory_mib(self) -> float:
        """Memory of all its processes, pages that several share counted once."""
        kib = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                session = int(status.read_text().rpartition(")")[2].split()[3])
                if session == self.process.pid:
                    rollup = (status.parent / "smaps_rollup").read_text()
                    kib += int(rollup.partition("\nPss:")[2].split()[0])
        return kib / 1024

    def stop(self) -> None:
        """End the server and its children."""
        with contextlib.suppress(ProcessLookupError):
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self.process.wait()
        self.guard.kill()
        self.guard.communicate()

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)


Command = Callable[[Path, Path, str, int], list[str]]
"""From (folder, GGUF file, data type, port) to a command line."""


def pyengine_command(folder: Path, _gguf: Path, dtype: str, port: int) -> list[str]:
    """`pyengine serve` without drafts, as the peers are."""
    quantized = dtype in ("int8", "int4")
    return [
        *(sys.executable, "-m", "pyengine", "serve", str(folder), "--port", str(port)),
        *("--device", "cpu", "--dtype", "bfloat16" if quantized else dtype),
        *(("--quantization", dtype) if quantized else ()),
        *("--max-sequences", str(SEQUENCES), "--kv-cache-mib", "512", "--speculation", "none"),
        *("--served-name", SERVED),
    ]


def pyengine_gguf_command(_folder: Path, gguf: Path, dtype: str, port: int) -> list[str]:
    """As :func:`pyengine_command`, of the file that llama.cpp serves too."""
    return pyengine_command(gguf, gguf, "float32" if dtype == "float32" else "bfloat16", port)


def with_threads(command: Command, threads: int | None) -> Command:
    """A command of pyengine's with a number of threads; None: its own choice."""
    more = [] if threads is None else ["--threads", str(threads)]
    return lambda *given: [*command(*given), *more]


def vllm_command(peers: Path) -> Command:
    """The server of vLLM."""

    def command(folder: Path, _gguf: Path, dtype: str, port: int) -> list[str]:
        return [
            *(str(peers / "vllm/bin/vllm"), "serve", str(folder), "--port", str(port)),
            *("--dtype", dtype, "--max-num-seqs", str(SEQUENCES), "--max-model-len", "512"),
            *("--served-model-name", SERVED, "--disable-log-stats"),
        ]

    return command


def llama_command(peers: Path, threads: int) -> Command:
    """llama.cpp's server, with a slot for every request."""

    def command(_folder: Path, gguf: Path, _dtype: str, port: int) -> list[str]:
        return [
            *(str(peers / "llama/build/bin/llama-server"), "--model", str(gguf)),
            *("--port", str(port), "--threads", str(threads), "--parallel", str(SEQUENCES)),
            *("--ctx-size", str(512 * SEQUENCES), "--alias", SERVED, "--no-webui"),
        ]

    return command


def start(name: str, command: Command, folder: Path, gguf: Path, dtype: str, log: Path) -> Server:
    """Start a server and wait until it is healthy.

    Raises:
        RuntimeError: It ended, or did not become healthy in time; the log says why.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = time.perf_counter()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(folder, gguf, dtype, port),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | VLLM | {"PYTHONPATH": ""},
        )
    server = Server(name, port, process, _guard(process.pid))
    try:
        health = "ready" if name == "pyengine" else "health"
        while not _healthy(f"http://127.0.0.1:{port}/{health}"):
            if process.poll() is not None or time.perf_counter() - begin > START_SECONDS:
                raise RuntimeError(f"{name} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.02)
    except BaseException:
        server.stop()
        raise
    server.start_seconds = time.perf_counter() - begin
    return server


def _guard(group: int) -> subprocess.Popen[bytes]:
    """A process that ends the process group when this process has ended."""
    return subprocess.Popen(
        ["sh", "-c", GUARD, "sh", str(group)], stdin=subprocess.PIPE, start_new_session=True
    )


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
