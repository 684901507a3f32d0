"""Several tasks that take their work from one source."""

import asyncio
from collections.abc import Callable, Coroutine


async def in_parallel(workers: int, work: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run ``work`` as often at once; an exception of one ends all, and so does cancelling."""
    tasks = [asyncio.create_task(work()) for _ in range(workers)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
