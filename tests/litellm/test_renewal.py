"""A call that takes longer than a hold lives keeps its hold, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import litellm
import pytest
from litellm.integrations.custom_logger import CustomLogger
from routes import at, balance, in_threads

from llm_budget_hooks.litellm import BudgetRefused
from llm_budget_hooks.litellm.attempts import Attempt
from llm_budget_hooks.litellm.later import wait_settled
from llm_budget_hooks.litellm.renewal import watched
from llm_budget_hooks.testing import FakeProvider, Reply

MakeEngine = Callable[..., Any]
USED = Decimal("0.0000243")
OPEN = {"scope": "global", "meter": "in_flight", "limit": 10, "name": "open"}
DOLLARS = {"scope": "global", "limit": "$50", "window": "day", "name": "dollars"}


def _sync(asked: dict[str, Any]) -> None:
    litellm.completion(**asked)


def _async(asked: dict[str, Any]) -> None:
    asyncio.run(litellm.acompletion(**asked))


def _slow_stream(asked: dict[str, Any]) -> None:
    list(litellm.completion(**asked, stream=True))


@pytest.mark.parametrize("ask", [_sync, _async, _slow_stream])
def test_a_long_call_keeps_its_hold(
    ask: Callable[[dict[str, Any]], None], provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(OPEN, DOLLARS, reservation_timeout="1s")
    provider.next_replies(Reply(latency_s=2.5) if ask is not _slow_stream else Reply(chunk_latency_s=1.3))
    thread = threading.Thread(target=ask, args=(at(provider),))
    thread.start()
    provider.wait_for(1)
    for _ in range(4):
        time.sleep(0.5)
        assert balance(engine, "open")[1] == 1
    thread.join()
    assert balance(engine) == (USED, 0)
    assert watched() == 0


def test_a_stream_that_nobody_reads_is_not_renewed(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped(OPEN, DOLLARS, reservation_timeout="1s")
    kept = litellm.completion(**at(provider, stream=True))
    time.sleep(1.3)
    assert balance(engine, "open") == (0, 0)
    list(kept)
    assert balance(engine) == (USED, 0)


@pytest.mark.parametrize("entry", ["completion", "embedding", "responses", "text_completion"])
@pytest.mark.parametrize("awaited", [False, True])
def test_b112_a_client_timeout_settles_at_once(
    entry: str, awaited: bool, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(OPEN, DOLLARS)
    provider.hang_next(3)
    asked = {"model": "openai/text-embedding-3-small" if entry == "embedding" else "openai/gpt-4o-mini"}
    asked |= {"messages": at(provider)["messages"]} if entry == "completion" else {}
    asked |= {"input": "hi"} if entry in ("embedding", "responses") else {}
    asked |= {"prompt": "hi"} if entry == "text_completion" else {}
    more: dict[str, Any] = {"api_base": provider.base_url, "api_key": "test", "timeout": 0.3, "max_retries": 0}
    call = getattr(litellm, f"a{entry}" if awaited else entry)
    [outcome] = in_threads(lambda: asyncio.run(call(**asked, **more)) if awaited else call(**asked, **more), 1)
    assert isinstance(outcome, Exception)
    assert balance(engine, "open") == (0, 0)
    assert balance(engine)[0] > 0


def _attempts() -> int:
    gc.collect()
    return sum(isinstance(thing, Attempt) for thing in gc.get_objects())


class _Keeper(CustomLogger):
    """Keeps all that LiteLLM tells it, as LiteLLM's own queues do for as long as they are behind."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> None:
        self.kept.append(kwargs["litellm_logging_obj"])


def test_calls_of_which_half_never_end_leave_a_bounded_map(provider: FakeProvider, capped: MakeEngine) -> None:
    """An ended call is forgotten also where LiteLLM still keeps what it is to log."""
    capped(DOLLARS)
    keeper = _Keeper()
    litellm.callbacks.append(keeper)
    before = _attempts()

    async def some() -> None:
        for number in range(200):
            stream = await litellm.acompletion(**at(provider, stream=True, mock_response="a b c"))
            if number % 2:
                async for _ in stream:
                    pass
            else:
                await anext(stream)

    asyncio.run(some())
    gc.collect()
    assert wait_settled(10)
    assert watched() == 0
    assert len(keeper.kept) == 200
    assert _attempts() - before < 10


def test_a_refusal_keeps_nothing_of_its_request(provider: FakeProvider, capped: MakeEngine) -> None:
    """It is remembered for the retries that LiteLLM may make, without the frames that hold the prompt."""
    capped({"scope": "global", "meter": "calls", "limit": 1, "window": "day", "name": "calls"})
    litellm.completion(**at(provider))
    before = _attempts()
    for _ in range(20):
        with pytest.raises(BudgetRefused):
            litellm.completion(**at(provider))
    assert _attempts() - before < 3
