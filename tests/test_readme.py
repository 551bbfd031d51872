"""The README's examples run as they stand, and its statements about what is missing are true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from llm_budget_hooks import BudgetEngine, ConfigurationError, Policy
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.testing import FakeProvider

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
(RULES,) = (text for language, text in BLOCKS if language == "toml")
COMMANDS = [text.strip() for language, text in BLOCKS if language == "sh"]
EXAMPLES = [text for language, text in BLOCKS if language == "python"]
LITELLM, BUDGETED, LANGCHAIN, BARE = EXAMPLES
SPOKEN = "Good morning!"


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(text=SPOKEN, output_tokens=20) as running:
        yield running


def run(example: str, folder: Path, provider: FakeProvider, rules: str = RULES) -> str:
    """Run an example where a user would: beside the rules, with a key and a provider in the environment."""
    (folder / "budgets.toml").write_text(rules, encoding="utf-8")
    (folder / "example.py").write_text(example, encoding="utf-8")
    names = ("OPENAI_API_BASE", "OPENAI_BASE_URL")
    env = {**os.environ, **dict.fromkeys(names, provider.base_url), "OPENAI_API_KEY": "any"}
    env["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def spent(folder: Path, tenant: str, user: str | None) -> dict[str, object]:
    with BudgetEngine.open(f"sqlite:///{folder / 'llm-budget.db'}", folder / "budgets.toml") as engine:
        return {line.budget: line.spent for line in engine.status(tenant=tenant, user=user)}


@pytest.mark.parametrize("example", [LITELLM, LANGCHAIN], ids=["litellm", "langchain"])
def test_an_example_calls_the_provider_and_books_what_it_cost(
    example: str, tmp_path: Path, provider: FakeProvider
) -> None:
    assert run(example, tmp_path, provider).strip() == SPOKEN
    assert provider.count == 1
    balances = spent(tmp_path, "acme", "u1")
    assert balances["user-utterances-rolling:60s"] == 1
    assert balances["user-day"] == balances["global-usd-day"]
    assert balances["user-day"] == cost_of(provider)


@pytest.mark.parametrize("example", [LITELLM, LANGCHAIN], ids=["litellm", "langchain"])
def test_an_example_refuses_before_the_provider_is_called(example: str, tmp_path: Path, provider: FakeProvider) -> None:
    rules = RULES.replace('limit = "$5"', 'limit = "$0.000001"')
    assert rules != RULES
    said = run(example, tmp_path, provider, rules).strip()
    assert said == "This request is too large. Ask more narrowly."
    assert provider.count == 0
    assert spent(tmp_path, "acme", "u1")["user-day"] == 0


def test_the_example_without_a_patch_is_capped_as_well(tmp_path: Path, provider: FakeProvider) -> None:
    assert run(BUDGETED, tmp_path, provider).strip() == SPOKEN
    assert provider.count == 1
    assert spent(tmp_path, "default", None)["global-usd-day"] == cost_of(provider)


def test_the_example_without_a_framework_shows_what_was_held_and_spent(tmp_path: Path, provider: FakeProvider) -> None:
    first, *lines = run(BARE, tmp_path, provider).splitlines()
    assert first == "0.00048 held, 0.0002328 spent"
    assert lines == [
        "global-usd-day 0.0002328 of 50 usd",
        "user-day 0.0002328 of 5 usd",
        "user-utterances-rolling:60s 1 of 20 utterances",
    ]


def test_every_python_block_is_one_of_those_above() -> None:
    assert EXAMPLES == [LITELLM, BUDGETED, LANGCHAIN, BARE]


def test_the_line_for_the_proxy_names_a_module_and_what_it_gives() -> None:
    (settings,) = (text for language, text in BLOCKS if language == "yaml")
    module, _, name = settings.split("callbacks: ")[1].strip().rpartition(".")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    assert f'"{name}"' in Path(spec.origin).read_text(encoding="utf-8")


def test_the_examples_for_the_frameworks_are_short() -> None:
    for example in (LITELLM, LANGCHAIN):
        assert sum(bool(line.strip()) for line in example.splitlines()) <= 14


def test_the_two_commands_are_one_line_each() -> None:
    install = r"python3 -m venv \.venv && \.venv/bin/pip install -q "
    assert len(COMMANDS) == 2
    assert re.fullmatch(install + r"'\.\[demo\]' && \.venv/bin/llm-budget demo", COMMANDS[0])
    assert re.fullmatch(install + r"-e '\.\[test\]' && \.venv/bin/python -m pytest", COMMANDS[1])


def test_what_the_readme_says_is_missing_is_missing() -> None:
    for name in ("kill", "revive", "adjust", "rebuild", "report_injection"):
        assert not hasattr(BudgetEngine, name)
    assert not hasattr(Policy, "preset")
    for name in ("ledger", "journal", "on_alert", "on_degraded"):
        with pytest.raises(ConfigurationError, match="does not support"):
            BudgetEngine.open("memory://", {}, **{name: "any"})  # type: ignore[arg-type]  # whatever it is
    assert find_spec("llm_budget_hooks.fastapi") is None


def cost_of(provider: FakeProvider) -> object:
    """What the provider bills, at the list price of gpt-4o-mini."""
    return to_decimal(150 * provider.billed_input_tokens + 600 * provider.billed_output_tokens)
