"""The engine on a CUDA device that is not there, beneath the real torch and Triton.

It shows what is queued, copied, captured, compiled and waited for; no number is computed, and no
time means anything. The bounds are what was counted, on torch 2.15 with Triton 3.9 and on torch
2.11 with Triton 3.6.
"""

import json
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.clients import client_of
from tests.cuda_device.device import PYTHON, compiled, on_the_device, packages
from tests.cuda_device.scenes import MODELS, PROMPTS, SCENES, Model
from tests.programs import REPOSITORY, served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Kernels and copies of a layer, at a row as at 32.
NODES_OF_A_LAYER = {
    "dense": 10,
    "windows": 10,
    "int4": 10,
    "float8": 14,
    "float8 in blocks": 14,
    "experts": 27,
    "experts in int4": 25,
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What comes of each scene."""

    def play(scene: str) -> dict[str, Any]:
        done = subprocess.run(
            [PYTHON, "-m", "tests.cuda_device.scenes", scene],
            cwd=REPOSITORY,
            env=on_the_device(),
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"scene"')]
        assert len(lines) == 1, done.stderr
        answer: dict[str, Any] = json.loads(lines[0])
        return answer

    with ThreadPoolExecutor(2) as two:
        # The first compiles what most share.
        played = [play(next(iter(SCENES))), *two.map(play, list(SCENES)[1:])]
    for one in played:
        assert "error" not in one, f"{one['scene']}: {one['error']}"
    return {one["scene"]: one["found"] for one in played}


def test_an_engine_answers_and_nothing_is_illegal_or_late(found: dict[str, Any]) -> None:
    """Each step's token reaches the next one by the device, through graphs, prompts and decodes."""
    answers = found["answers"]
    assert answers["texts"] == sorted(alphabet_after(prompt[-1], 24) for prompt in PROMPTS)
    assert answers["answers"] == 9 * 4 * len(PROMPTS)
    assert answers["refused"] == {}
    assert answers["compiled late"] == 0
    assert answers["graphs launched"] > 40
    assert answers["waits of cudaMemcpy"] == answers["cudaStreamSynchronize"] == 0


def alphabet_after(letter: str, count: int) -> str:
    """The letters that follow, round and round."""
    first = ord(letter) - ord("a") + 1
    return "".join(chr(ord("a") + (first + at) % 26) for at in range(count))


def test_a_capture_that_fails_gives_its_memory_back(found: dict[str, Any]) -> None:
    captures = found["failing captures"]
    assert set(captures["failures"]) == {"raises", "waits", "synchronizes"}
    assert captures["failures"]["raises"] == "ValueError"
    assert captures["left"] == 0
    assert captures["nodes"] == 1  # of the one that succeeds behind them


@pytest.mark.parametrize("model", MODELS)
def test_a_decode_step_is_two_graphs_two_copies_and_one_wait(
    model: str, found: dict[str, Any]
) -> None:
    steps = found[f"steps of {model}"]
    assert steps["refused"] == {}
    assert steps["compiled late"] == 0
    for rows, step in steps["decode"].items():
        assert step["graphs launched"] == 2, rows
        assert step.get("kernels", 0) == 0, rows
        assert step["copies pinned to device"] == step["copies device to pinned"] == 1, rows
        assert step["cudaEventSynchronize"] == 1, rows
        assert not {"cudaMalloc", "cudaStreamSynchronize", "cudaDeviceSynchronize"} & set(step)
        assert steps["nodes of a layer"][rows] <= NODES_OF_A_LAYER[model], steps["layer"][rows]


@pytest.mark.parametrize("model", MODELS)
def test_a_prompt_beside_decodes_is_in_graphs_and_a_large_one_is_not(
    model: str, found: dict[str, Any]
) -> None:
    steps = found[f"steps of {model}"]
    assert steps["mixed"]["graphs launched"] == 2
    assert steps["eager"]["kernels"] > 20
    for step in (steps["mixed"], steps["eager"]):
        assert step["cudaEventSynchronize"] == 1
        assert not {"cudaStreamSynchronize", "cudaDeviceSynchronize"} & set(step)


def test_no_kernel_votes_or_keeps_numbers_in_memory(found: dict[str, Any]) -> None:
    """Machine code of every kernel: a thread spills a number or two at most, and the bits of votes
    are counted once a sum, not a thousand times, as Triton 3.6 does for a histogram.
    """
    assert found
    tool = packages() / "triton" / "backends" / "nvidia" / "bin" / "cuobjdump"
    binaries = sorted(compiled().rglob("*.cubin"))
    assert {"spread_kernel", "attend_kernel", "grouped_packed_kernel"} <= {
        path.stem for path in binaries
    }
    for path in binaries:
        done = subprocess.run(
            [str(tool), "--dump-resource-usage", str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        spilt = [int(size) for size in re.findall(r"(?:STACK|LOCAL):(\d+)", done.stdout)]
        assert len(spilt) >= 2, path.stem
        assert max(spilt) <= 8, path.stem
        assert path.with_suffix(".ptx").read_text().count("popc") <= 4, path.stem


def test_a_server_answers(tmp_path: Path) -> None:
    folder = Model().write(tmp_path, 2)
    arguments = ["--device", "cuda", "--port", "0", "--max-context", "512", str(folder)]
    command = (PYTHON, "-m", "pyengine")
    with served(*arguments, command=command, env=on_the_device()) as server:
        server.expect(r"ready: \S+ at (\S+)/v1", 300)
        with client_of(server.url()) as client:
            model = client.models.list().data[0].id
            answer = client.completions.create(
                model=model, prompt="Hello", max_tokens=12, extra_body={"ignore_eos": True}
            )
        assert server.end(signal.SIGTERM) == 0
    assert answer.choices[0].text == alphabet_after("o", 12)
