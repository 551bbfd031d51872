"""The commands of an operator, seen from another process's engine: the kill switch, overrides, and the trail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, llm_budget, used_store

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, Usage

POLICY = """
store_timeout = "10s"
[prices.made-up]
input = "1"
output = "10"
[[budgets]]
name = "all"
scope = "global"
limit = "$50"
window = "day"
[[budgets]]
name = "user-day"
scope = "user"
limit = "$2"
window = "day"
[[budgets]]
name = "rate"
scope = "user"
meter = "calls"
limit = 20
window = "rolling:60s"
"""
Command = Callable[..., Ran]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "budgets.toml"
    path.write_text(POLICY, encoding="utf-8")
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def app(shared_url: str, policy: Path, ledger: str) -> Iterator[BudgetEngine]:
    """An application's engine, which is told nothing but by its store."""
    with BudgetEngine.open(shared_url, policy, ledger=ledger) as engine:
        engine.status()
        yield engine


@pytest.fixture
def command(shared_url: str, policy: Path, ledger: str) -> Command:
    environment = {"LLM_BUDGET_STORE": shared_url, "LLM_BUDGET_POLICY": str(policy), "LLM_BUDGET_LEDGER": ledger}
    return lambda *args, **more: llm_budget(*args, **environment, **more)


def call(amount: str = "0.10", **more: Any) -> Call:
    return Call(**{"model": "made-up", "tenant": "acme", "user": "u1", "amount": amount, **more})


def test_kill_stops_one_tenant_in_every_process_and_revive_lets_it_in(app: BudgetEngine, command: Command) -> None:
    app.release(app.reserve(call()))
    done = command("kill", "--tenant", "acme", "--reason", "a loop", "--by", "ops")
    assert (done.code, done.out) == (0, "Stopped: every call of tenant acme is refused from now on.\n")
    with pytest.raises(BudgetExceeded, match="a loop"):
        app.reserve(call())
    app.release(app.reserve(call(tenant="other")))
    assert command("kill", "--tenant", "acme", "--json").json == {"tenant": "acme", "changed": False}
    assert command("revive", "--tenant", "acme", "--json").json == {"tenant": "acme", "changed": True}
    app.release(app.reserve(call()))
    assert "was not on" in command("revive", "--tenant", "acme").out
    seen = command("events", "--json").json["items"]
    assert [(one["name"], one["tenant"], one["by"] != "") for one in seen[:2]] == [
        ("revived", "acme", True),
        ("killed", "acme", True),
    ]


def test_a_change_is_in_the_services_trail_though_the_command_names_no_ledger(
    app: BudgetEngine, shared_url: str, policy: Path
) -> None:
    where = ("--store", shared_url, "--policy", policy, "--by", "ops")
    assert llm_budget("kill", "--tenant", "acme", "--reason", "a loop", *where).code == 0
    assert llm_budget("revive", "--tenant", "acme", *where).code == 0
    assert llm_budget("set", "user-day", "$5", "--tenant", "acme", "--reason", "a launch", *where).code == 0
    assert llm_budget("unset", "user-day", "--tenant", "acme", *where).code == 0
    app.flush()
    events = [(one.name, one.by, one.text) for one in app.ledger.events().items]
    assert events == [("revived", "ops", ""), ("killed", "ops", "a loop")]
    assert [(one.limit, one.reason) for one in app.ledger.overrides().items] == [("", ""), ("$5", "a launch")]


def test_kill_for_everybody_has_to_be_said(app: BudgetEngine, command: Command) -> None:
    for args in ((), ("--tenant", "acme", "--everybody")):
        refused = command("kill", *args)
        assert (refused.code, refused.out, "--everybody" in refused.err) == (2, "", True)
    app.release(app.reserve(call()))
    assert command("kill", "--everybody").code == 0
    with pytest.raises(BudgetExceeded):
        app.reserve(call(tenant="other"))
    assert command("revive", "--everybody").code == 0
    app.release(app.reserve(call(tenant="other")))


def test_set_raises_a_limit_for_the_next_call_and_unset_takes_it_back(app: BudgetEngine, command: Command) -> None:
    with pytest.raises(BudgetExceeded):
        app.reserve(call("3"))
    done = command("set", "user-day", "$5", "--tenant", "acme", "--for", "24h", "--reason", "a launch")
    assert done.code == 0
    assert done.out.startswith("The limit of user-day is $5 for tenant acme from the next call on, until ")
    app.release(app.reserve(call("3")))
    with pytest.raises(BudgetExceeded):
        app.reserve(call("3", tenant="other"))
    assert command("unset", "user-day", "--tenant", "acme", "--json").json["changed"]
    with pytest.raises(BudgetExceeded):
        app.reserve(call("3"))
    assert "No limit" in command("unset", "user-day", "--tenant", "acme").out


def test_set_takes_counts_and_off(app: BudgetEngine, command: Command) -> None:
    assert command("set", "rate", "1", "--tenant", "acme").code == 0
    app.release(app.reserve(call()))
    with pytest.raises(BudgetExceeded):
        app.reserve(call())
    done = command("set", "rate", "off", "--tenant", "acme", "--json")
    assert (done.json["limit"], done.json["expires_at"]) == ("off", None)
    app.release(app.reserve(call()))
    assert command("set", "all", "$0.05").code == 0
    with pytest.raises(BudgetExceeded) as caught:
        app.reserve(call())
    assert caught.value.budget == "all"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("user-day", "0", "--tenant", "acme"), "off"),
        (("user-day", "0e5", "--tenant", "acme"), "off"),
        (("user-day", "+0", "--tenant", "acme"), "off"),
        (("user-day", "$0.00", "--tenant", "acme"), "off"),
        (("user-day", "much", "--tenant", "acme"), "much"),
        (("nothing", "$5", "--tenant", "acme"), "'user-day'"),
        (("user-day", "$5"), "name the tenant"),
        (("all", "$5", "--tenant", "acme"), "global"),
        (("user-day", "$5", "--tenant", "acme", "--for", "soon"), "duration"),
        (("user-day", "$5", "--tenant", "acme", "--for", "99999999999999d"), "366 days"),
        (("rate", "$5", "--tenant", "acme"), "whole number"),
    ],
)
def test_a_wrong_set_changes_nothing_and_is_exit_code_2(
    args: tuple[str, ...], said: str, policy: Path, tmp_path: Path
) -> None:
    done = llm_budget("set", *args, "--store", used_store(tmp_path), "--policy", policy)
    assert (done.code, done.out, said in done.err) == (2, "", True), done.err


def test_the_trail_is_shown_and_paged(app: BudgetEngine, command: Command) -> None:
    for step in ("router", "answer"):
        held = app.reserve(call(step=step, feature="chat"))
        app.settle(held, usage=Usage(input_tokens=1000, output_tokens=100))
    with pytest.raises(BudgetExceeded):
        app.reserve(call("3", feature="chat"))
    first = command("runs", "--limit", 1, "--tenant", "acme", "--json").json
    (answer,) = first["items"]
    assert (answer["step"], answer["cost"], answer["estimate"]) == ("answer", "0.002", "0.1")
    (router,) = command("runs", "--limit", 1, "--after", first["after"], "--json").json["items"]
    assert router["step"] == "router"
    (refused,) = command("refusals", "--code", "spend", "--json").json["items"]
    assert (refused["budget"], refused["requested"], refused["limit"], refused["failed"]) == (
        "user-day", "3", "2", ["user-day"],
    )  # fmt: skip
    shown = command("runs", width=120)
    assert "$0.002" in shown.out
    assert "1,000 + 100" in shown.out
    assert "$3" in command("refusals", width=120).out
    assert command("refusals", "--since", "2999-01-01").out == "There are no refusals.\n"


def test_what_a_caller_named_itself_does_nothing_to_a_terminal(policy: Path, tmp_path: Path) -> None:
    store, ledger = f"sqlite:///{tmp_path / 'b.db'}", f"sqlite:///{tmp_path / 'l.db'}"
    with BudgetEngine.open(store, policy, ledger=ledger) as engine:
        engine.charge(call(user="\x1b[2J[red]"), cost="0.1")
    done = llm_budget("runs", "--store", store, "--policy", policy, "--ledger", ledger, width=160)
    assert "\ufffd[2J[red]" in done.out
    assert "\x1b" not in done.out


def test_without_a_ledger_it_says_what_to_name(policy: Path, tmp_path: Path) -> None:
    done = llm_budget("runs", "--store", used_store(tmp_path), "--policy", policy)
    assert (done.code, "LLM_BUDGET_LEDGER" in done.err) == (2, True)


CHANGES = [("kill", "--everybody"), ("revive", "--everybody"), ("set", "all", "$5"), ("unset", "all")]


@pytest.mark.parametrize("args", CHANGES, ids=lambda args: args[0])
def test_nothing_is_changed_in_a_store_that_no_call_uses(args: tuple[str, ...], policy: Path, tmp_path: Path) -> None:
    for store, said in (
        ("memory://", "ends with this command"),
        (f"sqlite:///{tmp_path / 'x.db'}", "no call was made"),
    ):
        done = llm_budget(*args, "--store", store, "--policy", policy)
        assert (done.code, done.out, said in done.err) == (2, "", True), done.err
    assert [path.name for path in tmp_path.iterdir()] == ["budgets.toml"]


@pytest.mark.parametrize(
    "args", [("kill", "--tenant", ""), ("set", "user-day", "$5", "--tenant", " "), ("runs", "--tenant", "")]
)
def test_an_empty_tenant_is_nobody(app: BudgetEngine, command: Command, args: tuple[str, ...]) -> None:
    app.release(app.reserve(call(tenant=None)))
    done = command(*args)
    assert (done.code, done.out, "it is empty" in done.err) == (2, "", True)
    assert (app.kills(), app.overrides()) == ([], [])


def test_the_ledger_is_enough_where_the_store_is_not_there(policy: Path, tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path / 'l.db'}"
    with BudgetEngine.open(f"sqlite:///{tmp_path / 'b.db'}", policy, ledger=ledger) as engine:
        engine.charge(call(), cost="0.1")
    elsewhere = ("--policy", policy, "--store", f"sqlite:///{tmp_path / 'typed-wrong.db'}")
    (row,) = llm_budget("runs", *elsewhere, "--ledger", ledger, "--json").json["items"]
    assert (row["cost"], (tmp_path / "typed-wrong.db").exists()) == ("0.1", False)
    done = llm_budget("runs", *elsewhere, "--ledger", f"sqlite:///{tmp_path / 'wrong.db'}")
    assert (done.code, "There is no ledger" in done.err, (tmp_path / "wrong.db").exists()) == (2, True, False)


@pytest.mark.parametrize("args", [("kill", "--tenant", "a"), ("set", "all", "$5")])
def test_a_store_that_is_away_is_exit_code_1_and_one_sentence(args: tuple[str, ...], policy: Path) -> None:
    done = llm_budget(*args, "--store", "redis://127.0.0.1:1/0", "--policy", policy)
    assert (done.code, done.out) == (1, "")
    assert "Traceback" not in done.err
