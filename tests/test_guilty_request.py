"""A request that kills the engine whenever it runs loses itself alone, whichever worker has it."""

import asyncio
import signal
from pathlib import Path

import openai
import pytest

from tests.programs import environment, served
from tests.test_workers import LONG, SERVE, client_of, streams_of_two

# A special token, which the simulated device never says. The engine's process dies of it.
DEADLY = 2
SITE = f"""
import sys
if any("engine_main" in part for part in sys.orig_argv):
    import os
    import signal
    from pyengine.model.simulated import SimulatedRunner
    launch = SimulatedRunner.launch
    def deadly(self, buffers):
        if {DEADLY} in buffers.token_ids[:buffers.num_tokens]:
            os.kill(os.getpid(), signal.SIGKILL)
        return launch(self, buffers)
    SimulatedRunner.launch = deadly
"""


@pytest.mark.slow
async def test_a_request_that_kills_the_engine_is_the_only_one_lost(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    with served(*SERVE, env=env) as server:
        async with client_of(server.url()) as client:
            others = await streams_of_two(client)
            others += [one for _ in range(3) for one in await streams_of_two(client)]
            reading = [asyncio.create_task(one.finish()) for one in others]
            with pytest.raises(openai.InternalServerError) as lost:
                await client.completions.create(model="pyengine-demo", prompt=[DEADLY] * 4)
            assert "died twice while running this request alone" in lost.value.message
            await asyncio.gather(*reading)
            assert {(one.error, one.tokens) for one in others} == {(None, LONG)}
            assert len({one.text for one in others}) == 1
            assert len({one.worker for one in others}) == 2
            again = await client.completions.create(model="pyengine-demo", prompt="Go on")
            assert again.usage is not None
        # With the others, with the others again, then alone and once more alone.
        deaths = [line for line in server.output if "the engine died; restarting it" in line]
        assert len(deaths) == 4
        assert server.end(signal.SIGTERM) == 0
