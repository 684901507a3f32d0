"""``docs/page.png``: the page at /, taken while other clients keep the engine at work.

``python -m tools.docs.screenshot`` writes it. It needs Debian's chromium, and shows the demo model.
"""

import asyncio
import shutil
from pathlib import Path

from playwright.async_api import Page, ViewportSize, async_playwright, expect

from pyengine import AsyncEngine, SamplingParams
from pyengine.http.serving.server import HttpServer

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "page.png"
SIZE = ViewportSize(width=1180, height=720)
OTHERS = 4
"""Clients beside the page."""
SECONDS = 8
"""How long they are watched, so that the curve has a form."""


async def main() -> None:
    """Chat, call a tool, and take the picture in the midst of others' answers."""
    async with AsyncEngine(placement="process") as engine:
        server = HttpServer(engine, port=0)
        await server.start()
        others = [asyncio.create_task(keep_asking(engine, number)) for number in range(OTHERS)]
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            page = await browser.new_page(viewport=SIZE)
            await page.goto(server.url)
            await converse(page)
            await asyncio.sleep(SECONDS)
            await page.screenshot(path=PICTURE)
            await browser.close()
        for other in others:
            other.cancel()
        await server.stop(0)


async def keep_asking(engine: AsyncEngine, number: int) -> None:
    """One answer behind the other, each as long as may be."""
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    while True:
        await engine.generate(f"{number} Once upon a time there was", params)


async def converse(page: Page) -> None:
    """A question, and one that is answered by a call, whose result is written but not sent."""
    await page.get_by_label("Temperature").fill("0")
    await ask(page, "What is the capital of France?", 1)
    await page.get_by_role("radio", name="Tools").check(force=True)
    await ask(page, "What is the weather in Paris?", 2)
    await page.locator(".turn.assistant textarea").fill('{"temperature": 21, "sky": "clear"}')


async def ask(page: Page, text: str, turns: int) -> None:
    """Send a message, and wait for the end of its answer."""
    await page.locator("#prompt").fill(text)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Regenerate")).to_have_count(turns)


if __name__ == "__main__":
    asyncio.run(main())
