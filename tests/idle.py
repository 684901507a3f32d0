"""What is left of requests when an engine has nothing to do any more."""

from pyengine import AsyncEngine


async def settled(engine: AsyncEngine) -> dict[str, int]:
    """The engine's report when no request is left and no step is in flight."""
    await engine.drained()
    while (report := await engine.report())["running"] + report["in_flight"]:
        pass  # each report is an answer from the scheduler, a step later
    return report


async def assert_nothing_is_left(engine: AsyncEngine) -> dict[str, int]:
    """No request is left, none is being compiled for, and every block is free or cached."""
    report = await settled(engine)
    assert report["waiting"] == report["held"] == report["compiling"] == 0
    assert report["free"] + report["cached"] == report["num_blocks"]
    return report
