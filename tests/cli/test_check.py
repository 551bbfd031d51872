"""A policy in sentences, and what is found to be amiss with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import llm_budget

from llm_budget_hooks import Policy
from llm_budget_hooks.presets import PRESETS
from llm_budget_hooks.testing import RedisServer

POLICY = """
timezone = "Europe/Prague"
[[budgets]]
scope = "global"
limit = "$50"
window = "day"
[[budgets]]
scope = "user"
meter = "tokens"
limit = 200_000
window = "fixed:24h"
models = ["*mini*"]
[[budgets]]
name = "open"
scope = "tenant"
meter = "in_flight"
limit = 4
[[tenants.acme.budgets]]
name = "open"
scope = "tenant"
meter = "in_flight"
limit = 0
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return written(tmp_path, POLICY)


def written(folder: Path, text: str) -> Path:
    path = folder / "budgets.toml"
    path.write_text(text, encoding="utf-8")
    return path


def found(*args: object) -> list[str]:
    done = llm_budget("check", *args, "--json")
    texts = [finding["text"] for finding in done.json["findings"]]
    assert done.code == (1 if texts else 0)
    return texts


def test_each_budget_is_a_sentence(policy: Path) -> None:
    done = llm_budget("check", policy, "--json")
    assert [line["sentence"] for line in done.json["budgets"]] == [
        "Everybody together may spend $50.00 in each day (Europe/Prague).",
        "Each user of a tenant may use 200,000 tokens, input and output together in the 24 hours that begin with the "
        "first use, with models like *mini*.",
        "Each tenant may have 4 model calls open at once.",
        "Tenant acme: switched off, a limit of 0 asks nobody.",
    ]
    assert [line["off"] for line in done.json["budgets"]] == [False, False, False, True]
    assert (done.code, done.json["findings"]) == (0, [])


def test_the_sentences_are_what_a_person_reads(policy: Path) -> None:
    done = llm_budget("check", policy)
    assert "global-usd-day  Everybody together may spend $50.00" in done.out
    assert "Switched off by a limit of 0, so that nobody is refused: " in done.out
    assert done.out.endswith("Nothing else is amiss.\n")
    assert "\n\nNothing is amiss.\n" in llm_budget("check", "--preset", "zeno").out


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_printed_as_a_file_that_is_the_same_policy(name: str, tmp_path: Path) -> None:
    done = llm_budget("check", "--preset", name, "--print")
    assert done.code == 0
    path = written(tmp_path, done.out)
    assert Policy.load(path) == Policy.preset(name)
    assert found(path) == found("--preset", name) == []


def test_the_one_counter_of_llm_budget_cap_can_be_for_each_user() -> None:
    assert 'scope = "user"' in llm_budget("check", "--preset", "llm-budget-cap", "--per", "user", "--print").out
    done = llm_budget("check", "--preset", "llm-budget-cap", "--per", "user")
    assert "Each user of a tenant may spend $10.00 in the 24 hours that begin with the first use." in done.out


def test_a_limit_below_the_steps_budget_is_found_unless_a_step_fits(tmp_path: Path) -> None:
    text = '[[budgets]]\nscope = "user"\nlimit = "$0.004"\nwindow = "day"\n'
    (one,) = found(written(tmp_path, text))
    assert "no call of gpt-4o-mini without an output bound (max_tokens) can pass a limit of $0.004: " in one
    assert "held at $0.005" in one
    assert found(written(tmp_path, '[steps]\nrouter = "$0.001"\n' + text)) == []


def test_a_limit_that_no_call_at_all_can_pass_is_found_with_the_price_of_a_model(tmp_path: Path) -> None:
    path = written(tmp_path, '[[budgets]]\nscope = "answer"\nlimit = "$0.000001"\n')
    assert found(path, "--model", "gpt-4") == ["no call of gpt-4 can pass a limit of $0.000001"]
    (tokens,) = found(written(tmp_path, '[[budgets]]\nscope = "user"\nmeter = "tokens"\nlimit = 1\nwindow = "day"\n'))
    assert "can pass a limit of 1 token" in tokens


def test_a_budget_about_other_models_is_tried_with_one_of_them(tmp_path: Path) -> None:
    low = '[[budgets]]\nscope = "user"\nlimit = "$0.0000001"\nwindow = "day"\nmodels = '
    (one,) = found(written(tmp_path, low + '["claude-*"]\n'))
    assert one.startswith("no call of claude-")
    assert one.endswith(" can pass a limit of $0.0000001")
    assert found(tmp_path / "budgets.toml", "--model", "gpt-4o") == [one]
    (own,) = found(written(tmp_path, '[prices."ours-1"]\ninput = 1\noutput = 1\n' + low + '["ours-*"]\n'))
    assert own == "no call of ours-1 can pass a limit of $0.0000001"
    (odd,) = found(written(tmp_path, low + '["gtp-4*"]\n'))
    assert odd == "no model with a known price is like gtp-4*, so it was not tried: name one with --model"
    flat = 'unknown_price = "0.001"\n'
    assert found(written(tmp_path, flat + low + '["gtp-4*"]\n')) == ["no call of gtp-4* can pass a limit of $0.0000001"]
    few = '[[budgets]]\nscope = "user"\nmeter = "tokens"\nlimit = 1\nwindow = "day"\nmodels = ["gtp-4*"]\n'
    (tokens,) = found(written(tmp_path, few))
    assert "can pass a limit of 1 token" in tokens
    enough = '[[budgets]]\nscope = "user"\nlimit = "$5"\nwindow = "day"\nmodels = ["claude-*", "gemini-*"]\n'
    assert found(written(tmp_path, enough)) == []


def test_the_bound_of_a_large_model_is_found_to_be_above_a_small_limit(tmp_path: Path) -> None:
    path = written(tmp_path, 'estimate = "bound"\n[[budgets]]\nscope = "answer"\nlimit = "5¢"\n')
    (one,) = found(path, "--model", "gpt-4o")
    assert "without an output bound" in one
    assert found(path, "--model", "gpt-4o-mini") == []


def test_a_model_without_a_price_and_a_policy_without_budgets_are_found(tmp_path: Path) -> None:
    assert found(written(tmp_path, 'namespace = "x"\n')) == ["there are none, so nothing is ever refused"]
    path = written(tmp_path, '[[budgets]]\nscope = "global"\nlimit = "$5"\nwindow = "day"\n')
    assert found(path, "--model", "no-such-model") == [
        "no price is known for no-such-model, so each of its calls is refused"
    ]


def test_a_store_in_memory_is_found_to_be_each_workers_own(policy: Path) -> None:
    (one,) = found(policy, "--store", "memory://")
    assert "memory:// is private to each process: with several workers" in one
    done = llm_budget("check", policy, "--store", "memory://", WEB_CONCURRENCY="4")
    assert (done.code, "WEB_CONCURRENCY=4" in done.out) == (1, True)


def test_b030_a_redis_that_evicts_balances_is_found(policy: Path, redis_server: RedisServer) -> None:
    assert found(policy, "--store", redis_server.url) == []
    redis_server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        (one,) = found(policy, "--store", redis_server.url)
        assert "maxmemory-policy is allkeys-lru" in one
        allowed = written(policy.parent, "allow_eviction = true\n" + POLICY)
        assert found(allowed, "--store", redis_server.url) == []
    finally:
        redis_server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_a_store_that_does_not_answer_is_found(policy: Path) -> None:
    (one,) = found(policy, "--store", "redis://127.0.0.1:1/0")
    assert "cannot be reached" in one


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "LLM_BUDGET_POLICY"),
        (("nowhere.toml",), "cannot be read"),
        (("/",), "/: the policy file cannot be read"),
        (("--preset", "zenon"), "zeno, llm-budget-cap, pact, daily-tokens"),
        (("--print",), "--preset"),
        (("x.toml", "--preset", "zeno"), "not both"),
        (("--preset", "zeno", "--store", "nope://"), "no store is named"),
        (("--preset", "pact", "--per", "user"), "llm-budget-cap"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(args: tuple[str, ...], said: str, monkeypatch: Any) -> None:
    monkeypatch.delenv("LLM_BUDGET_POLICY", raising=False)
    done = llm_budget("check", *args)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_mistake_in_the_file_names_its_place(tmp_path: Path) -> None:
    done = llm_budget("check", written(tmp_path, '[[budgets]]\nscope = "user"\nlimit = 0.5\nwindow = "day"\n'))
    assert done.code == 2
    assert done.err.startswith("budgets.toml: budgets[0].limit")
