"""Calls that fail where they are prepared: nothing is sent, so nothing is billed and nothing stays held."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import litellm
import pytest
from routes import MESSAGES, at, balance, router_of

from llm_budget_hooks.litellm import budgeted
from llm_budget_hooks.testing import FakeProvider

MakeEngine = Callable[..., Any]
IN_FLIGHT = {"scope": "global", "meter": "in_flight", "limit": 9, "name": "open"}
DOLLARS = {"scope": "global", "limit": "$50", "window": "day", "name": "dollars"}
UNSENDABLE: dict[str, dict[str, Any]] = {
    "no messages": {"messages": None},
    "an empty message": {"messages": [None]},
    "text for messages": {"messages": "text"},
    "response_format": {"response_format": 5},
    "an unknown model": {"model": "no such provider"},
}


def _asked(provider: FakeProvider, **more: Any) -> dict[str, Any]:
    return {**at(provider, max_tokens=40, max_retries=0), **more}


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wrong", UNSENDABLE)
def test_a_call_that_cannot_be_sent_costs_nothing(
    wrong: str, streams: bool, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(IN_FLIGHT, DOLLARS, estimate="bound", unknown_price="$0.10")
    asked = _asked(provider, stream=streams, **UNSENDABLE[wrong])
    with pytest.raises(Exception, match=r"."):
        litellm.completion(**asked)
    with pytest.raises(Exception, match=r"."):
        asyncio.run(litellm.acompletion(**asked))
    with pytest.raises(Exception, match=r"."):
        asyncio.run(litellm.acompletion(**asked, num_retries=1))
    assert (provider.count, balance(engine), balance(engine, "open")[1]) == (0, (0, 0), 0)


def test_a_router_is_not_charged_for_what_it_cannot_send(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped(IN_FLIGHT, DOLLARS)
    router = router_of(provider, num_retries=1)
    with pytest.raises(Exception, match=r"."):
        asyncio.run(router.acompletion(model="first", messages=[None]))
    assert (provider.count, balance(engine), balance(engine, "open")[1]) == (0, (0, 0), 0)


@pytest.mark.parametrize("wrong", UNSENDABLE)
def test_budgeted_is_not_charged_for_what_it_cannot_send(
    wrong: str, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(IN_FLIGHT, DOLLARS, estimate="bound", unknown_price="$0.10")
    litellm.callbacks = []
    asked = _asked(provider, **UNSENDABLE[wrong])
    with pytest.raises(Exception, match=r"."):
        budgeted(engine).completion(**asked)
    with pytest.raises(Exception, match=r"."):
        asyncio.run(budgeted(engine).acompletion(**asked))
    assert (provider.count, balance(engine), balance(engine, "open")[1]) == (0, (0, 0), 0)


class _Junk(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"choices": 5, "usage": {"prompt_tokens": 2}}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def junk() -> Iterator[str]:
    """The address of a provider whose answers nobody can read."""
    with HTTPServer(("127.0.0.1", 0), _Junk) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("plain", [False, True], ids=["callback", "budgeted"])
def test_a_call_whose_answer_cannot_be_read_is_charged(
    plain: bool, junk: str, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(IN_FLIGHT, DOLLARS)
    if plain:
        litellm.callbacks = []
    entries = budgeted(engine) if plain else litellm
    asked = _asked(provider, api_base=junk)
    with pytest.raises(litellm.exceptions.openai.APIError):
        entries.completion(**asked)
    once = balance(engine)[0]
    assert once > 0
    with pytest.raises(litellm.exceptions.openai.APIError):
        asyncio.run(entries.acompletion(**asked))
    assert balance(engine) == (2 * once, 0)


def test_an_answer_that_cannot_be_read_inside_another_entry_point_is_charged(junk: str, capped: MakeEngine) -> None:
    """Google's leads to a chat that LiteLLM logs by an object of its own."""
    engine = capped(IN_FLIGHT, DOLLARS)
    contents = [{"role": "user", "parts": [{"text": "hi"}]}]
    asked = {"model": "openai/gpt-4o-mini", "contents": contents, "api_base": junk, "api_key": "test"}
    with pytest.raises(Exception, match=r"."):
        asyncio.run(litellm.agenerate_content(**asked))
    spent, held = balance(engine)
    assert spent > 0
    assert held == 0


@pytest.mark.parametrize("options", ["x", True, 5, ["x"]], ids=repr)
def test_stream_options_that_are_none_are_left_to_litellm(
    options: Any, provider: FakeProvider, capped: MakeEngine
) -> None:
    asked = _asked(provider, stream=True, stream_options=options)

    async def read() -> None:
        async for _ in await litellm.acompletion(**asked):
            pass

    def outcomes() -> list[str]:
        found = []
        for ask in (lambda: asyncio.run(read()), lambda: list(litellm.completion(**asked))):
            with pytest.raises(Exception, match=r".") as caught:
                ask()
            found.append(f"{caught.type.__name__} after {provider.count}")
        provider.reset()
        return found

    uncapped = outcomes()
    engine = capped(IN_FLIGHT, DOLLARS)
    assert outcomes() == uncapped
    assert (balance(engine), balance(engine, "open")[1]) == ((0, 0), 0)


def test_arguments_that_do_not_fit_leave_no_hold(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped(IN_FLIGHT, DOLLARS)
    with pytest.raises(TypeError):
        asyncio.run(litellm.acompletion("gpt-4o", MESSAGES, **at(provider)))
    with pytest.raises(TypeError):
        litellm.completion("gpt-4o", MESSAGES, **at(provider))
    assert (provider.count, balance(engine), balance(engine, "open")[1]) == (0, (0, 0), 0)


def _time_out() -> None:
    raise TimeoutError


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("awaits", [False, True], ids=["blocking", "awaited"])
def test_what_the_caller_was_handling_says_nothing_about_the_call(
    awaits: bool, streams: bool, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(IN_FLIGHT, DOLLARS)
    asked = _asked(provider, stream=streams)

    async def awaited() -> None:
        try:
            _time_out()
        except TimeoutError:
            await litellm.acompletion(**asked)

    def blocking() -> None:
        try:
            _time_out()
        except TimeoutError:
            litellm.completion(**asked)

    provider.fail_next(status=429)
    with pytest.raises(litellm.RateLimitError):
        asyncio.run(awaited()) if awaits else blocking()
    assert (provider.count, balance(engine), balance(engine, "open")[1]) == (1, (0, 0), 0)
