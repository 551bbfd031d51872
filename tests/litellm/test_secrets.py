"""No prompt, answer or key is anywhere but at the provider."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import litellm
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from routes import at

from llm_budget_hooks import BudgetEngine, BudgetExceeded
from llm_budget_hooks.litellm import BudgetCallback
from llm_budget_hooks.metrics.prometheus import PrometheusBalances, PrometheusObserver
from llm_budget_hooks.models.events import Event
from llm_budget_hooks.testing import FakeProvider, RedisServer

PASSWORD = "marked-password"  # noqa: S105 - of a server that lives for this test
KEY, PROMPT, ANSWER, USER = "sk-marked-key", "marked-prompt", "marked-answer", "marked-user"
POLICY: dict[str, Any] = {
    "budgets": [
        {"scope": "global", "limit": "$5", "window": "day"},
        {"scope": "user", "limit": "$0.001", "window": "day"},
    ],
    "store_timeout": "300ms",
    "degraded_allowance": "$0.001",
}


def ask(provider: FakeProvider, max_tokens: int) -> str:
    """What a call answers, or all that its refusal says."""
    asked = {**at(provider), "api_key": KEY, "metadata": {"tenant": "t", "user": USER, "feature": "chat"}}
    asked["messages"] = [{"role": "user", "content": PROMPT}]
    try:
        return str(litellm.completion(**asked, max_retries=0, max_tokens=max_tokens).choices[0].message.content)
    except BudgetExceeded as refused:
        return f"{refused!r} {refused} {refused.public_message} {vars(refused)}"


def keys_and_contents(server: RedisServer) -> tuple[bytes, bytes]:
    keys = server.command("KEYS", "*")
    return b"\n".join(keys), b"\n".join(filter(None, (server.command("DUMP", key) for key in keys)))


def test_no_secret_is_in_a_log_an_error_a_row_a_metric_or_a_store(
    provider: FakeProvider, tmp_path: Path, caplog: pytest.LogCaptureFixture, state_home: Path
) -> None:
    registry, events = CollectorRegistry(), list[Event]()
    caplog.set_level(logging.DEBUG, logger="llm_budget_hooks")
    provider.text = ANSWER
    with RedisServer(requirepass=PASSWORD, args=("--rdbcompression", "no")) as server:
        opened: dict[str, Any] = {"ledger": f"sqlite:///{tmp_path / 'ledger.db'}"}
        opened["observers"] = (PrometheusObserver(registry=registry), events.append)
        with BudgetEngine.open(server.url, POLICY, **opened) as engine:
            PrometheusBalances(engine, tenants=("t",), registry=registry)
            litellm.callbacks = [BudgetCallback(engine)]
            assert [ask(provider, 60) for _ in range(3)] == [ANSWER] * 3
            told = [ask(provider, 100_000)]
            server.pause()
            assert ask(provider, 60) == ANSWER
            told.append(ask(provider, 100_000))
            journals = b"".join(path.read_bytes() for path in state_home.rglob("*") if path.is_file())
            server.resume()
            keys, contents = keys_and_contents(server)
            engine.flush()
            told += [repr(engine), str(engine.ledger.runs().items), str(engine.status("t", USER)), repr(events)]
            scraped = generate_latest(registry)
            found = {"logs": caplog.text.encode(), "texts": " ".join(told).encode(), "metrics": scraped}
    rows = (tmp_path / "ledger.db").read_bytes()
    found |= {"ledger": rows, "journal": journals, "keys": keys, "contents": contents}
    assert all("Daily limit" in text or "did not answer" in text for text in told[:2]), told[:2]
    assert b"chat" in rows
    assert b"llm_budget_cost" in scraped
    assert USER.encode() in rows  # a ledger names who has spent
    assert len(journals) > 1_000
    for place, text in found.items():
        for secret in (PASSWORD, KEY, PROMPT, ANSWER):
            assert secret.encode() not in text, (place, secret)
    for place in ("keys", "metrics"):
        assert USER.encode() not in found[place], place
