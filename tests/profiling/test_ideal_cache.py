"""The ideal prefix cache, in cases that can be counted by hand."""

import pytest

from pyengine.errors import ConfigError
from pyengine.model.spec import describe
from pyengine.profiling.ideal_cache import ideal_cached_share
from pyengine.profiling.workload import Job
from pyengine.settings.config import EngineConfig


def jobs(*prompts: list[int], answer: int = 1) -> list[Job]:
    return [Job(float(at), prompt, answer) for at, prompt in enumerate(prompts)]


def test_full_blocks_of_a_prefix_are_found() -> None:
    first = list(range(8))
    assert ideal_cached_share(jobs(first), 10, 4) == 0.0
    # The last token is computed: one block of the same prompt.
    assert ideal_cached_share(jobs(first, first), 10, 4) == 4 / 16
    assert ideal_cached_share(jobs(first, [*first, 9]), 10, 4) == 8 / 17
    assert ideal_cached_share(jobs(first, [9, *first]), 10, 4) == 0.0
    assert ideal_cached_share([], 10, 4) == 0.0


def test_the_least_recently_used_goes_first() -> None:
    a, b, c = ([n] * 5 for n in (1, 2, 3))
    assert ideal_cached_share(jobs(a, b, a, c, a), 2, 4) == 8 / 25
    assert ideal_cached_share(jobs(a, b, c, a), 2, 4) == 0.0
    assert ideal_cached_share(jobs(a, b, c, a), 3, 4) == 4 / 20
    # Answers take room, too.
    assert ideal_cached_share(jobs(a, b, a, answer=7), 4, 4) == 4 / 15
    assert ideal_cached_share(jobs(a, b, a, answer=7), 3, 4) == 0.0


def test_the_simulated_device_takes_prompts_as_long_as_a_trace_has() -> None:
    asked = EngineConfig(device="simulated", max_context=100_000)
    assert describe(asked).info.max_context == 100_000
    with pytest.raises(ConfigError, match="the model was made for 2048"):
        describe(EngineConfig(device="cpu", max_context=100_000))
