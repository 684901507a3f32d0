"""A service whose loop is kept for 0.3 s by a call when a line is typed; says its URL."""

import asyncio
import sys
import time

from pyengine import AsyncEngine
from pyengine.http.serving.server import HttpServer


async def main() -> None:
    engine = AsyncEngine(device="simulated", simulated_step_ms=7, placement="process")
    async with engine:
        server = HttpServer(engine, port=0)
        await server.start()
        print(server.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        time.sleep(0.3)  # noqa: ASYNC251 - this is the fault
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
