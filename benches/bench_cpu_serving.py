"""Serving random models on the CPU, streamed over HTTP, beside vLLM and llama.cpp: two Llamas, S
and L, and a mixture of experts, M, whose GGUF file both pyengine and llama.cpp serve.

Each server is started alone and frozen while another is measured; rounds alternate between them.
Peers take part where ``--peers`` has them (``make bench-peers``): vLLM in a venv ``vllm``,
llama.cpp in ``llama/build``.
Without peers, or with ``--quick``, the floors of the machine say how far there is to go.

    python -m benches.bench_cpu_serving [--quick] [--models S,L,M] [--dtypes bfloat16,int8,int4]
        [--concurrency 1,4,16,64] [--prompt 128] [--output 64] [--threads N] [--rounds 3] [--json -]
"""

import argparse
import dataclasses
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benches.cpu_serving.floors import Floors, measure
from benches.cpu_serving.load import Result, run
from benches.cpu_serving.models import SHAPES, Shape, tensors, write_folder, write_gguf
from benches.cpu_serving.servers import (
    Command,
    Server,
    llama_command,
    pyengine_command,
    pyengine_gguf_command,
    start,
    vllm_command,
    with_threads,
)
from benches.figures import json_option, write_json
from pyengine._core import instruction_set

OURS = "pyengine"
# vLLM's CPU backend does not take these.
UNLIKE_VLLM = ("int8", "int4")
# Of a round. A step gives each request in flight a token: with fewer requests, the 99th percentile
# of their gaps is that of a few steps, and one stall of the machine sets it.
LEAST_REQUESTS = 24


@dataclass
class Row:
    """One engine at one number of requests in flight.

    Medians of its rounds; of gaps between tokens the 99th percentile in all rounds.
    """

    model: str
    dtype: str
    engine: str
    concurrency: int
    tokens_per_s: float
    ttft_ms: float
    tpot_ms: float
    gap_p99_ms: float
    start_seconds: float
    memory_mib: float
    floor_ratio: float
    ratios: dict[str, float] = field(default_factory=dict)


def main() -> None:
    # So that servers and files are cleaned up, as they are after an interrupt.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    arguments = _arguments()
    threads: int = arguments.threads or len(os.sched_getaffinity(0))
    floors = measure(threads)
    print(_machine(floors, threads), file=sys.stderr)
    rows: list[Row] = []
    table = arguments.json != "-"
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models:
            shape = SHAPES[name]
            weights = tensors(shape)
            write_folder(Path(folder) / name, shape, weights)
            for dtype in arguments.dtypes:
                gguf = Path(folder) / name / f"{dtype}.gguf"  # beside its tokenizer
                commands = _commands(arguments, shape, dtype, threads)
                if "llama.cpp" in commands or shape.experts:
                    write_gguf(gguf, shape, weights, dtype)
                for row in _measured(arguments, shape, dtype, commands, Path(folder), floors):
                    rows.append(row)
                    if table:
                        print(_line(row), flush=True)
                gguf.unlink(missing_ok=True)
    figures = {
        "instructions": instruction_set(),
        "bandwidth_gb_per_s": round(floors.bandwidth / 1e9, 1),
        "gflops": {dtype: round(flops / 1e9) for dtype, flops in floors.flops.items()},
        "threads": threads,
        "prompt": arguments.prompt,
        "output": arguments.output,
        "runs": [_rounded(dataclasses.asdict(row)) for row in rows],
    }
    write_json(figures, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    json_option(parser)
    parser.add_argument("--quick", action="store_true", help="pyengine alone, within 50 seconds")
    parser.add_argument("--models", type=_names, help="S, L, M [default: S and L]")
    parser.add_argument(
        "--dtypes", type=_names, help="float32, bfloat16, int8, int4; of M float16, too"
    )
    parser.add_argument("--concurrency", type=_numbers, help="requests in flight")
    parser.add_argument("--prompt", type=int, default=128, help="tokens in [default: 128]")
    parser.add_argument("--output", type=int, default=64, help="tokens out [default: 64]")
    parser.add_argument(
        "--threads", type=int, help="of pyengine and llama.cpp [default: one for each processor]"
    )
    parser.add_argument("--rounds", type=int, help="rounds of all engines")
    parser.add_argument("--engines", type=_names, help="pyengine, vllm, llama.cpp")
    parser.add_argument(
        "--peers", type=Path, default=Path("build/peers"), help="the folder that they are in"
    )
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.models = arguments.models or (["S"] if quick else ["S", "L"])
    arguments.dtypes = arguments.dtypes or ["bfloat16"]
    arguments.concurrency = arguments.concurrency or ([1, 16] if quick else [1, 4, 16, 64])
    arguments.rounds = arguments.rounds or (1 if quick else 3)
    arguments.engines = arguments.engines or ([OURS] if quick else [OURS, "vllm", "llama.cpp"])
    return arguments


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _commands(
    arguments: argparse.Namespace, shape: Shape, dtype: str, threads: int
) -> dict[str, Command]:
    peers = arguments.peers.resolve()
    ours = pyengine_gguf_command if shape.experts else pyengine_command
    commands: dict[str, Command] = {OURS: with_threads(ours, arguments.threads)}
    if (peers / "vllm/bin/vllm").exists() and dtype not in UNLIKE_VLLM:
        commands["vllm"] = vllm_command(peers)
    if (peers / "llama/build/bin/llama-server").exists():
        commands["llama.cpp"] = llama_command(peers, threads)
    return {name: command for name, command in commands.items() if name in arguments.engines}


def _measured(
    arguments: argparse.Namespace,
    shape: Shape,
    dtype: str,
    commands: dict[str, Command],
    folder: Path,
    floors: Floors,
) -> Iterator[Row]:
    prompt, output = arguments.prompt, arguments.output
    with ExitStack() as stack:
        servers: list[Server] = []
        for name, command in commands.items():
            gguf, log = folder / shape.name / f"{dtype}.gguf", folder / f"{name}.log"
            server = start(name, command, folder / shape.name, gguf, dtype, log)
            stack.callback(server.stop)
            with server.running():
                run(server.port, 2, 4, prompt, output, seed=0)
            servers.append(server)
        for concurrency in arguments.concurrency:
            results: dict[str, list[Result]] = {server.name: [] for server in servers}
            for turn in range(arguments.rounds):
                # Whoever was last is first: a slow spell hits all alike.
                for server in servers if turn % 2 == 0 else reversed(servers):
                    with server.running():
                        requests = max(LEAST_REQUESTS, 2 * concurrency)
                        seed = 1 + turn
                        results[server.name].append(
                            run(server.port, concurrency, requests, prompt, output, seed)
                        )
            rows = [
                _row(arguments, shape, dtype, concurrency, one, results[one.name], floors)
                for one in servers
            ]
            for row in rows:
                row.ratios = {
                    other.engine: row.tokens_per_s / other.tokens_per_s
                    for other in rows
                    if row.engine == OURS and other is not row
                }
                yield row


def _row(
    arguments: argparse.Namespace,
    shape: Shape,
    dtype: str,
    concurrency: int,
    server: Server,
    results: list[Result],
    floors: Floors,
) -> Row:
    def median(name: str) -> float:
        return statistics.median(float(getattr(result, name)) for result in results)

    floor = floors.tokens_per_s(shape, dtype, concurrency, arguments.prompt, arguments.output)
    return Row(
        model=shape.name,
        dtype=dtype,
        engine=server.name,
        concurrency=concurrency,
        tokens_per_s=median("tokens_per_s"),
        ttft_ms=median("ttft_ms"),
        tpot_ms=median("tpot_ms"),
        gap_p99_ms=_gap_p99_ms(results),
        start_seconds=server.start_seconds,
        memory_mib=server.memory_mib(),
        floor_ratio=median("tokens_per_s") / floor,
    )


def _gap_p99_ms(results: list[Result]) -> float:
    gaps = [gap for one in results for gap in one.gaps_ms]
    return float(np.percentile(gaps or [0.0], 99))


def _machine(floors: Floors, threads: int) -> str:
    flops = ", ".join(f"{dtype} {flops / 1e9:.0f}" for dtype, flops in floors.flops.items())
    return (
        f"{instruction_set()}; {threads} threads; memory {floors.bandwidth / 1e9:.1f} GB/s; "
        f"GFLOP/s: {flops}\n"
        f"{'model':<6}{'dtype':<10}{'engine':<10}{'in flight':>9}{'tokens/s':>10}{'of floor':>9}"
        f"{'TTFT ms':>9}{'TPOT ms':>9}{'p99 gap':>9}{'start s':>9}{'MiB':>7}  ratio"
    )


def _line(row: Row) -> str:
    ratios = ", ".join(f"{ratio:.2f} of {name}" for name, ratio in row.ratios.items())
    return (
        f"{row.model:<6}{row.dtype:<10}{row.engine:<10}{row.concurrency:>9}"
        f"{row.tokens_per_s:>10.0f}{row.floor_ratio:>9.2f}{row.ttft_ms:>9.1f}{row.tpot_ms:>9.2f}"
        f"{row.gap_p99_ms:>9.1f}{row.start_seconds:>9.1f}{row.memory_mib:>7.0f}  {ratios}"
    )


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()
    }


if __name__ == "__main__":
    main()
