"""The dashboard in a real Chromium: layout, keyboard, script and requests, as a person meets them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, Usage
from llm_budget_hooks.dashboard import dashboard_app

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
POLICY: dict[str, Any] = {
    "prices": {"made-up": {"input": "1", "output": "10"}},
    "store_timeout": "10s",
    "budgets": [{"name": "user-day", "scope": "user", "limit": "$2", "window": "day"}],
}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as made:
        opened = made.chromium.launch(executable_path=os.environ["LLM_BUDGET_BROWSER"], args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[BudgetEngine]:
    with BudgetEngine.open(f"sqlite:///{tmp_path / 'b.db'}", POLICY, ledger=f"sqlite:///{tmp_path / 'l.db'}") as made:
        for step in ("router", "answer"):
            call = Call(model="made-up", tenant="acme", user="u1", step=step, utterance="ut-1", amount="0.1")
            made.settle(made.reserve(call), usage=Usage(input_tokens=1000, output_tokens=100))
        made.flush()
        yield made


@pytest.fixture
def url(engine: BudgetEngine) -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(dashboard_app(engine), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/?tenant=acme&user=u1"
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_its_window_and_asks_no_other_host(
    browser: Any, url: str, engine: BudgetEngine, width: int, scheme: str
) -> None:
    long = "a-tenant-with-a-rather-long-name.example.com"
    engine.charge(Call(model="made-up", tenant=long, user=f"somebody@{long}", amount="0.1"), cost="0.1")
    with pytest.raises(BudgetExceeded):
        engine.reserve(Call(model="made-up", tenant=long, user=f"somebody@{long}", amount="3"))
    engine.flush()
    page = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(url)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    assert dark == (scheme == "dark")
    assert all(one.startswith((url.partition("?")[0], "data:")) for one in asked)
    assert said == []
    page.goto(url.partition("?")[0])
    edges = page.evaluate("[...document.querySelectorAll('td.n')].map(c => c.getBoundingClientRect().right)")
    assert (len(edges) > 10, max(edges) < width) == (True, True)


def test_the_kill_switch_is_turned_with_the_keyboard_alone(browser: Any, url: str, engine: BudgetEngine) -> None:
    page = browser.new_context().new_page()
    page.goto(url)
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").startswith("Stop all calls"):
            break
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("a loop")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert engine.kills() == []  # the browser asks for the box to be ticked, and goes there
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_text("Stopped: acme.").wait_for()
    assert [(switch.tenant, switch.reason) for switch in engine.kills()] == [("acme", "a loop")]


def test_a_limit_is_edited_and_refusals_come_by_themselves(browser: Any, url: str, engine: BudgetEngine) -> None:
    page = browser.new_context().new_page()
    page.goto(url)
    page.get_by_text("Edit limit").click()
    page.get_by_label("Limit in dollars").fill("1")
    page.get_by_role("button", name="Set").click()
    page.get_by_text("The limit of user-day is 1 now.").wait_for()
    with pytest.raises(BudgetExceeded):
        engine.reserve(Call(model="made-up", tenant="acme", user="u1", amount="1.5"))
    engine.flush()
    page.get_by_role("cell", name="$1.50").wait_for(timeout=20_000)


def test_the_page_goes_on_while_somebody_reads_or_edits_in_it(browser: Any, url: str, engine: BudgetEngine) -> None:
    page = browser.new_context().new_page()
    page.goto(url)
    page.get_by_text("Edit limit").click()
    page.get_by_label("Limit in dollars").fill("1.")
    answer = page.locator("#answers summary")
    answer.focus()
    page.keyboard.press("Enter")
    page.locator("#answers").get_by_text("router").wait_for()
    engine.charge(Call(model="made-up", tenant="acme", user="u1", amount="0.5"), cost="0.5")
    with pytest.raises(BudgetExceeded):
        engine.reserve(Call(model="made-up", tenant="acme", user="u1", amount="1.75"))
    engine.flush()
    page.get_by_role("cell", name="$1.75").wait_for(timeout=20_000)
    page.locator("article dd", has_text="$0.50").wait_for(timeout=20_000)  # what is spent, above the open editor
    assert page.get_by_label("Limit in dollars").input_value() == "1."
    assert page.locator("#answers").get_by_text("router").is_visible()
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.keyboard.press("Enter")
    assert not page.locator("#answers").get_by_text("router").is_visible()
