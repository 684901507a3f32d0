"""The page at /: served safely, and used in a real browser, by its keyboard too."""

import shutil
from collections.abc import AsyncIterator

import httpx
import pytest
from playwright.async_api import Page, Route, async_playwright, expect

from pyengine.http.limits import Limits
from pyengine.http.serving.server import HttpServer
from tests.http.fake_engine import ANSWER, FakeEngine

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
browser_test = [
    pytest.mark.slow,
    pytest.mark.xdist_group("chromium"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


async def test_page_is_one_document_that_runs_nothing_else(http: httpx.AsyncClient) -> None:
    answer = await http.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    text = answer.text
    assert "src=" not in text
    assert "innerHTML" not in text
    assert "/* style */" not in text
    assert "/* script */" not in text


class TestWithoutIt:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(page=False)

    async def test_page_can_be_switched_off(self, http: httpx.AsyncClient) -> None:
        answer = await http.get("/")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "unknown_url"


class TestInChromium:
    pytestmark = browser_test

    @pytest.fixture
    async def page(self, server: HttpServer) -> AsyncIterator[Page]:
        """The page of the server, in a fresh browser; it must log no error."""
        problems: list[str] = []
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
            )
            page = await browser.new_page(viewport={"width": 1200, "height": 800})
            page.on("pageerror", lambda error: problems.append(str(error)))
            await page.goto(server.url)
            await expect(page.locator("#model")).to_have_value("org/fake")
            yield page
            await browser.close()
        assert not problems

    async def test_a_message_is_answered(self, page: Page, engine: FakeEngine) -> None:
        await page.get_by_label("Message", exact=True).fill("hello")
        await page.get_by_role("button", name="Send").click()
        answer = page.locator(".turn.assistant .body")
        await expect(answer).to_contain_text('Here is a "quoted" answer')
        await expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
        assert len(engine.asked) == 1
        await page.get_by_role("button", name="Regenerate").click()
        await expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
        assert engine.asked[0].prompt == engine.asked[1].prompt

    async def test_with_the_keyboard_alone(self, page: Page, engine: FakeEngine) -> None:
        """Write, stop, edit the message before, and begin anew."""
        engine.hold_after = 5
        await expect(page.locator("#prompt")).to_be_focused()
        await page.keyboard.type("first")
        await page.keyboard.press("Enter")
        answer = page.locator(".turn.assistant .body")
        await expect(answer).to_have_text(ANSWER[:5])
        await page.keyboard.press("Escape")
        await expect(page.locator(".turn.assistant .tools")).to_contain_text("stopped")
        await engine.until(lambda: not engine.running)
        engine.release()
        await expect(page.locator("#prompt")).to_be_focused()
        await page.keyboard.press("ArrowUp")
        await page.keyboard.press("Control+A")
        await page.keyboard.type("second")
        await page.keyboard.press("Enter")
        await expect(page.locator(".turn.user .body")).to_have_text("second")
        await expect(answer).to_contain_text("second line")
        assert "second" in engine.tokenizer.decode(engine.asked[-1].prompt)
        await page.keyboard.press("Alt+n")
        await expect(page.locator(".turn")).to_have_count(0)

    async def test_parameters_and_schemas_are_sent(self, page: Page, engine: FakeEngine) -> None:
        await page.get_by_label("Temperature").fill("0.5")
        await page.get_by_label("Max tokens").fill("7")
        await page.get_by_label("Seed").fill("3")
        await page.get_by_label("Stop strings").fill("one\ntwo")
        await page.get_by_label("System prompt").fill("Be brief.")
        await page.get_by_role("radio", name="JSON").check(force=True)
        await page.locator("#prompt").fill("hello")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
        asked = engine.asked[-1]
        params = asked.params
        assert (params.temperature, params.max_tokens, params.seed) == (0.5, 7, 3)
        assert params.stop == ("one", "two")
        assert "Be brief." in engine.tokenizer.decode(asked.prompt)
        assert asked.grammar is not None
        await page.locator("#schema").fill("{")
        await page.locator("#prompt").fill("again")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("not valid JSON")
        # The message is neither lost nor part of the conversation until it can be sent.
        await expect(page.locator("#prompt")).to_have_value("again")
        await page.locator("#schema").fill("{}")
        await page.locator("#prompt").press("Enter")
        await expect(page.locator(".turn.user")).to_have_count(2)
        await engine.until(lambda: len(engine.asked) == 2)
        assert engine.tokenizer.decode(engine.asked[-1].prompt).count("again") == 1

    async def test_edits_of_a_conversation(self, page: Page, engine: FakeEngine) -> None:
        """An emptied edit changes nothing, nor does Enter while a word is composed."""
        buttons = page.get_by_role("button", name="Regenerate")
        for count, text in enumerate(("first", "second"), 1):
            await page.locator("#prompt").fill(text)
            await page.locator("#prompt").press("Enter")
            await expect(buttons).to_have_count(count)
            if count == 1:
                await page.locator(".turn").first.evaluate("node => { node.dataset.kept = 'yes' }")
        # A screen reader's log keeps what it has read.
        await expect(page.locator(".turn").first).to_have_attribute("data-kept", "yes")
        await page.locator("#prompt").press("ArrowUp")
        area = page.get_by_label("Edited message")
        await area.evaluate(
            "node => node.dispatchEvent(new KeyboardEvent('keydown',"
            " { key: 'Enter', isComposing: true, bubbles: true, cancelable: true }))"
        )
        await area.fill("")
        await area.press("Enter")
        await expect(area).to_be_visible()
        await area.press("Escape")
        await expect(page.locator(".turn")).to_have_count(4)
        await page.locator("#prompt").fill("third")
        await page.locator("#prompt").press("Enter")
        await expect(buttons).to_have_count(3)
        prompt = engine.tokenizer.decode(engine.asked[-1].prompt)
        assert all(text in prompt for text in ("first", "second", "third"))
        assert len(engine.asked) == 3

    async def test_copies_where_the_clipboard_is_closed(self, page: Page) -> None:
        await page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        await page.evaluate(
            "document.execCommand = () => (window.taken = document.activeElement.value) !== ''"
        )
        await page.locator("#prompt").fill("hello")
        await page.locator("#prompt").press("Enter")
        await page.get_by_role("button", name="Copy").click()
        await expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert await page.evaluate("window.taken") == ANSWER
        await page.evaluate("document.execCommand = () => false")
        await expect(page.get_by_role("button", name="Copy", exact=True)).to_be_visible()
        await page.get_by_role("button", name="Copy").click()
        await expect(page.get_by_role("button", name="Not copied")).to_be_visible()

    async def test_markdown_is_shown_and_html_is_text(self, page: Page, engine: FakeEngine) -> None:
        engine.answer = (
            "# Title\n\n- one\n  - two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx < 1\n```\n"
            "**bold** [link](https://example.org) [bad](javascript:alert(1)) <img src=x onerror=x>"
        )
        await page.locator("#prompt").fill("hello")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
        answer = page.locator(".turn.assistant .body")
        for selector, text in {
            "h1": "Title", "li li": "two", "td >> nth=1": "2", "pre": "x < 1", "strong": "bold",
        }.items():  # fmt: skip
            await expect(answer.locator(selector)).to_have_text(text)
        await expect(answer.locator("a")).to_have_count(1)
        await expect(answer.locator("img")).to_have_count(0)
        await expect(answer).to_contain_text("<img src=x onerror=x>")

    async def test_an_error_is_shown(self, page: Page, engine: FakeEngine) -> None:
        engine.refuse = Exception("secret")
        await page.locator("#prompt").fill("hello")
        await page.keyboard.press("Enter")
        await expect(page.locator(".failed")).to_contain_text("Internal error")

    async def test_dark_and_light(self, page: Page) -> None:
        root = page.locator("html")
        await expect(root).to_have_attribute("data-theme", "light")
        await page.emulate_media(color_scheme="dark")
        await expect(root).to_have_attribute("data-theme", "dark")
        await page.get_by_role("button", name="Switch between dark and light").click()
        await expect(root).to_have_attribute("data-theme", "light")

    async def test_the_key_is_sent_and_kept_in_this_tab(
        self, page: Page, engine: FakeEngine
    ) -> None:
        await page.get_by_label("API key").fill("secret-key")
        await page.keyboard.press("Tab")
        async with page.expect_request("**/v1/chat/completions") as asked:
            await page.locator("#prompt").fill("hello")
            await page.keyboard.press("Enter")
        assert (await (await asked.value).all_headers())["authorization"] == "Bearer secret-key"
        assert await page.evaluate("sessionStorage.getItem('pyengine-key')") == "secret-key"
        assert await page.evaluate("localStorage.getItem('pyengine-key')") is None

    async def test_exposed_time_is_that_of_a_window_with_work(self, page: Page) -> None:
        """Its share while the device works, and nothing while it hardly does."""
        seconds = {"accounted": 100.0, "idle": 60.0, "device_busy": 10.0}
        window: dict[str, float] = {}  # what each of them grows by from one look to the next

        async def metrics(route: Route) -> None:
            for name, grown in window.items():
                seconds[name] += grown
            lines = [f"pyengine_{name}_seconds_total {at}\n" for name, at in seconds.items()]
            await route.fulfill(body=f"pyengine_generation_tokens_total 0\n{''.join(lines)}")

        exposed = page.locator("#m-cpu")
        window |= {"accounted": 1, "idle": 0, "device_busy": 0.8}
        await page.route("**/metrics", metrics)
        await expect(exposed).to_have_text("25%", timeout=60_000)
        window |= {"accounted": 1, "idle": 0.9, "device_busy": 0.02}
        await expect(exposed).to_have_text("–", timeout=60_000)
