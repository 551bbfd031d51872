"""The callback, what it puts around LiteLLM, and who is in charge."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import litellm
import pytest
from routes import CHAT, MESSAGES, at, balance

from llm_budget_hooks import BudgetEngine, BudgetExceeded, ConfigurationError
from llm_budget_hooks.litellm import BudgetCallback, entry
from llm_budget_hooks.testing import FakeProvider

MakeEngine = Callable[..., Any]


def test_it_does_nothing_while_no_callback_is_registered(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    litellm.callbacks = []
    for _ in range(11):
        litellm.completion(**at(provider))
    assert provider.count == 11
    assert balance(engine, "calls") == (0, 0)


def test_a_moved_entry_point_fails_loudly(capped: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    capped()

    def elsewhere(**_: Any) -> None:
        """As a LiteLLM would have it that has changed its decorator."""

    monkeypatch.setattr(litellm, "completion", elsewhere)
    with pytest.raises(ConfigurationError, match=r"LiteLLM .* has moved .*: completion"):
        entry.self_test()


def test_entry_points_that_are_made_later_are_covered(provider: FakeProvider, capped: MakeEngine) -> None:
    capped()

    def completion(**_: Any) -> str:
        return "an answer"

    made = litellm.utils.client(completion)
    assert entry._is_surrounded(made)


def test_two_engines_are_an_error_that_explains_itself(provider: FakeProvider) -> None:
    engines = [BudgetEngine.open("memory://", {}), BudgetEngine.open("memory://", {})]
    litellm.callbacks = [BudgetCallback(engine) for engine in engines]
    with pytest.raises(ConfigurationError, match="two engines"):
        litellm.completion(**at(provider))
    assert provider.count == 0


def test_b127_three_callbacks_of_one_engine_book_once(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    litellm.callbacks = [BudgetCallback(engine) for _ in range(3)]
    litellm.completion(**at(provider))
    assert balance(engine, "calls") == (1, 0)


def test_b127_uninstall_takes_it_out_of_every_list(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    callback = litellm.callbacks[0]
    litellm.completion(**at(provider))
    callback.uninstall()
    litellm.completion(**at(provider))
    assert balance(engine, "calls") == (1, 0)
    for name in ("callbacks", "success_callback", "failure_callback", "_async_success_callback"):
        assert callback not in getattr(litellm, name)


def test_a_replaced_callback_hands_over(provider: FakeProvider, capped: MakeEngine) -> None:
    first = capped()
    stream = litellm.completion(**at(provider, stream=True))
    second = capped()
    litellm.completion(**at(provider))
    list(stream)
    assert balance(first, "calls") == balance(second, "calls") == (1, 0)
    assert balance(first) == balance(second)


def test_b133_a_callback_can_be_pickled_and_copied(provider: FakeProvider, capped: MakeEngine, tmp_path: Path) -> None:
    engine = capped(url=f"sqlite:///{tmp_path}/budget.db")
    for again in (pickle.loads(pickle.dumps(litellm.callbacks[0])), copy.deepcopy(litellm.callbacks[0])):
        litellm.callbacks = [again]
        litellm.completion(**at(provider))
    assert balance(engine, "calls") == (2, 0)


def test_b133_a_callback_of_a_private_store_says_that_it_cannot_be_pickled(capped: MakeEngine) -> None:
    capped()
    with pytest.raises(Exception, match="memory"):
        pickle.dumps(litellm.callbacks[0])


def test_identity_comes_from_the_metadata(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped(
        {"scope": "user", "meter": "calls", "limit": 5, "window": "day", "name": "calls", "features": ["chat"]}
    )
    who = {"tenant": "acme", "user": "u1", "feature": "chat"}
    litellm.completion(**at(provider, metadata=who))
    litellm.completion(**at(provider, metadata={"tenant": "acme", "feature": "chat"}, user="u2"))
    litellm.responses(model="openai/gpt-4o-mini", input="hi", api_base=provider.base_url, api_key="test", metadata=who)
    assert balance(engine, "calls", tenant="acme", user="u1") == (2, 0)
    assert balance(engine, "calls", tenant="acme", user="u2") == (1, 0)


def test_an_enclosing_utterance_wins(provider: FakeProvider, capped: MakeEngine) -> None:
    calls = {"scope": "user", "meter": "calls", "limit": 5, "window": "day", "name": "calls"}
    utterances = {**calls, "meter": "utterances", "name": "utterances"}
    engine = capped(calls, utterances)
    with engine.utterance(tenant="acme", user="me") as scope:
        for _ in range(3):
            litellm.completion(**at(provider, metadata={"tenant": "victim", "user": "victim"}))
    assert scope.calls == 3
    assert balance(engine, "calls", tenant="acme", user="me") == (3, 0)
    assert balance(engine, "utterances", tenant="acme", user="me") == (1, 0)
    assert balance(engine, "calls", tenant="victim", user="victim") == (0, 0)


@pytest.mark.parametrize("engine", ["redis://localhost", BudgetEngine, None])
def test_what_is_no_engine_is_said_to_be_none(engine: Any) -> None:
    with pytest.raises(ConfigurationError, match="takes a BudgetEngine"):
        BudgetCallback(engine)


def test_b094_an_alias_of_litellm_is_held_as_what_it_stands_for(
    provider: FakeProvider, capped: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """$0.0061 is the bound of gpt-4o-mini and not of gpt-4o, whose name on the outside is the cheap one."""
    capped({"scope": "global", "limit": "$0.0061", "window": "day", "name": "dollars"})
    monkeypatch.setattr(litellm, "model_alias_map", {"house": "openai/gpt-4o-mini", CHAT: "openai/gpt-4o"})
    asked = {**at(provider), "max_tokens": 10_000}
    with pytest.raises(BudgetExceeded):
        litellm.completion(**asked)
    assert provider.count == 0
    litellm.completion(**{**asked, "model": "house"})
    assert provider.requests[0].model == "gpt-4o-mini"


def test_bad_identity_is_a_clear_error(provider: FakeProvider, capped: MakeEngine) -> None:
    capped()
    with pytest.raises(ConfigurationError, match="tenant"):
        litellm.completion(model="openai/gpt-4o-mini", messages=MESSAGES, metadata={"tenant": 7})
    assert provider.count == 0
