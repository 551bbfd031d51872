"""The engine that the environment names, and which variable is blamed when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_budget_hooks import BudgetEngine, Call, ConfigurationError, Policy

NAMES = ("LLM_BUDGET_STORE", "LLM_BUDGET_POLICY", "LLM_BUDGET_LEDGER")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy, named by the environment."""
    (tmp_path / "budgets.toml").write_text('[[budgets]]\nscope = "global"\nlimit = "$1"\nwindow = "day"\n')
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LLM_BUDGET_POLICY", "budgets.toml")
    return tmp_path


def names_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"budgets.toml"}


def test_without_a_store_it_is_a_file_in_this_folder_and_there_is_no_ledger(place: Path) -> None:
    with BudgetEngine.from_env() as engine:
        engine.charge(Call(model="any"), cost="0.25")
        assert (engine.ledger, engine.status()[0].limit) == (None, 1)
    assert names_of(place) == {"llm-budget.db"}


def test_each_variable_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_BUDGET_STORE", "sqlite:///store.db")
    monkeypatch.setenv("LLM_BUDGET_LEDGER", "sqlite:///ledger.db")
    with BudgetEngine.from_env() as engine:
        engine.charge(Call(model="any"), cost="0.25")
        engine.flush()
        assert len(engine.ledger.runs().items) == 1
    assert names_of(place) == {"store.db", "ledger.db"}


def test_what_is_given_goes_before_the_environment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "nope://")
    policy = Policy.load("budgets.toml")
    with BudgetEngine.from_env(store="sqlite:///given.db", policy=policy, ledger="") as engine:
        engine.charge(Call(model="any"), cost="0.25")
        assert (engine.policy, engine.ledger) == (policy, None)
    assert names_of(place) == {"given.db"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("LLM_BUDGET_POLICY", "", "LLM_BUDGET_POLICY is not set"),
        ("LLM_BUDGET_POLICY", "nowhere.toml", "LLM_BUDGET_POLICY: nowhere.toml: the policy file cannot be read"),
        ("LLM_BUDGET_STORE", "postgres://x", "LLM_BUDGET_STORE: no store is named 'postgres'"),
        ("LLM_BUDGET_STORE", "redis://h:port", "LLM_BUDGET_STORE: a Redis URL is"),
        ("LLM_BUDGET_STORE", "sqlite:///no/folder.db", "LLM_BUDGET_STORE: the folder of folder.db does not exist"),
        ("LLM_BUDGET_LEDGER", "mysql://x", "LLM_BUDGET_LEDGER: a ledger on 'mysql' is not supported"),
        ("LLM_BUDGET_LEDGER", "x", "LLM_BUDGET_LEDGER: this is no URL of a ledger"),
    ],
)
def test_an_error_names_the_variable(name: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigurationError) as caught:
        BudgetEngine.from_env()
    assert str(caught.value).startswith(said)


def test_an_error_in_what_was_given_blames_no_variable() -> None:
    with pytest.raises(ConfigurationError) as caught:
        BudgetEngine.from_env(store="nope://x")
    assert str(caught.value).startswith("no store is named")
