"""The limits of a key where several HTTP workers serve: they count together."""

import signal
from pathlib import Path

import httpx
import pytest

from tests.programs import served

KEY = "alices-key"
ALLOWED = 2  # a minute; another is allowed after 30 seconds


@pytest.mark.slow
def test_a_keys_limit_is_one_for_all_workers(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[keys]]\nname = "alice"\nkey = "{KEY}"\nrequests_per_minute = {ALLOWED}\n')
    options = (
        "--port",
        "0",
        "--workers",
        "2",
        "--device",
        "simulated",
        "--api-key-file",
        str(keys),
    )
    with served(*options) as server:
        url = f"{server.url()}/v1/completions"
        headers = {"authorization": f"Bearer {KEY}"}
        body = {"model": "pyengine-demo", "prompt": "Go on", "max_tokens": 1}
        # A connection each, which the kernel spreads over the workers.
        answers = [httpx.post(url, headers=headers, json=body, timeout=60) for _ in range(40)]
        assert server.end(signal.SIGTERM) == 0
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 429}
    assert statuses[:ALLOWED] == [200] * ALLOWED
    assert statuses.count(200) < 2 * ALLOWED  # what both workers would let in, each by itself
    workers = {answer.headers["x-request-id"].rpartition("-")[2][:16] for answer in answers}
    assert len(workers) == 2
    assert all(int(answer.headers["retry-after"]) > 0 for answer in answers[-10:])
