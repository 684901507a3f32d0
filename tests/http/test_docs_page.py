"""The page at /docs, in a real browser: every operation is there, with its body and its answers."""

import json

from playwright.async_api import async_playwright, expect

from pyengine.http.operations.openapi import document
from pyengine.http.serving.server import HttpServer
from tests.http.test_page import CHROMIUM, browser_test

pytestmark = browser_test


async def test_every_operation_is_shown_whole(server: HttpServer) -> None:
    described = json.loads(document(server.app.routes, server.app.engine.model_names))
    operations = [each for methods in described["paths"].values() for each in methods.values()]
    bodies = [
        media for each in operations for media in each.get("requestBody", {}).get("content", {})
    ]
    assert "multipart/form-data" in bodies
    problems: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = await browser.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text))
        await page.goto(f"{server.url}/docs")
        shown = page.locator("#paths > details")
        await expect(shown).to_have_count(len(operations))
        await expect(shown.locator("> h4", has_text="Body")).to_have_count(len(bodies))
        await expect(shown.locator("> h4", has_text="Answers")).to_have_count(len(operations))
        await browser.close()
    assert not problems
