"""The balances as the command shows them, once and live, of real stores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from commands import llm_budget, used_store

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.cli.status import shown

POLICY = """
store_timeout = "10s"
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
WHOSE = ("--tenant", "acme", "--user", "u1")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "budgets.toml"
    path.write_text(POLICY, encoding="utf-8")
    return path


def spend(url: str, policy: Path, amount: str) -> None:
    with BudgetEngine.open(url, policy) as engine:
        engine.charge(Call(model="any", tenant="acme", user="u1", amount=amount), cost=amount)


def test_a_table_shows_spent_held_free_and_limit_with_a_bar(shared_url: str, policy: Path) -> None:
    spend(shared_url, policy, "1.5")
    with BudgetEngine.open(shared_url, policy) as engine:
        engine.reserve(Call(model="any", tenant="acme", user="u1", amount="0.2"))
    done = llm_budget("status", "--store", shared_url, "--policy", policy, *WHOSE, width=80)
    (line,) = [line.split() for line in done.out.splitlines() if "user-day" in line]
    assert line[1:6] == ["███████▒··", "$1.50", "$0.20", "$0.30", "$2.00"]
    assert (done.code, max(map(len, done.out.splitlines())) <= 80) == (0, True)


def test_json_has_every_number_as_it_is(shared_url: str, policy: Path) -> None:
    spend(shared_url, policy, "0.000000001")
    done = llm_budget("status", "--store", shared_url, "--policy", policy, *WHOSE, "--json")
    everybody, user, rate = done.json["budgets"]
    assert (everybody["limit"], user["spent"], user["available"]) == ("50", "0.000000001", "1.999999999")
    assert (rate["spent"], rate["limit"], rate["meter"], done.json["shared"]) == (1, 20, "calls", True)
    assert user["resets_at"].endswith("+00:00")


def test_kill_switches_and_set_limits_are_shown(shared_url: str, policy: Path) -> None:
    with BudgetEngine.open(shared_url, policy) as engine:
        engine.kill("acme", reason="a\x1b[2J loop", by="ops")
        engine.kill("other")
        engine.override("user-day", "$5", tenant="acme", by="ada", reason="a launch")
        engine.override("all", "$60")
        engine.override("rate", 0, tenant="acme")
    shown = llm_budget("status", "--store", shared_url, "--policy", policy, "--tenant", " acme ")
    assert "Stopped: tenant acme, since " in shown.out
    assert " by ops. a\ufffd[2J loop" in shown.out
    assert "Set: user-day is $5 for tenant acme, by ada: a launch." in shown.out
    assert "Set: all is $60 for everybody, by somebody." in shown.out
    assert "Set: rate is off for tenant acme, by somebody." in shown.out
    assert ("other" in shown.out, "\x1b" in shown.out, shown.code) == (False, False, 0)
    seen = llm_budget("status", "--store", shared_url, "--policy", policy, "--json").json
    assert {(one["tenant"], one["by"]) for one in seen["killed"]} == {("acme", "ops"), ("other", "")}
    assert {(one["budget"], one["tenant"], one["limit"]) for one in seen["overrides"]} == {
        ("user-day", "acme", "5"), ("all", None, "60"), ("rate", "acme", 0),
    }  # fmt: skip


def test_without_a_tenant_it_shows_what_is_everybodys(policy: Path, tmp_path: Path) -> None:
    environment = {"LLM_BUDGET_STORE": used_store(tmp_path), "LLM_BUDGET_POLICY": str(policy)}
    done = llm_budget("status", "--json", **environment)
    assert [line["budget"] for line in done.json["budgets"]] == ["all"]


def test_what_could_not_be_read_is_unread_and_exit_code_1(policy: Path) -> None:
    away = ("status", "--store", "redis://127.0.0.1:1/0", "--policy", policy, *WHOSE)
    shown = llm_budget(*away)
    assert shown.code == 1
    assert shown.out.count("unread") > 3
    assert "$0.00" not in shown.out
    figures = llm_budget(*away, "--json")
    assert figures.code == 1
    assert [line["spent"] for line in figures.json["budgets"]] == [None] * 3
    assert (figures.json["killed"], figures.json["overrides"]) == (None, None)


def test_a_store_in_memory_says_that_it_speaks_for_itself(policy: Path) -> None:
    assert "private to one process" in llm_budget("status", "--store", "memory://", "--policy", policy).out


def test_a_file_that_is_not_there_is_told_and_not_made(policy: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for store in ((), ("--store", "sqlite:///typed wrong.db")):
        done = llm_budget("status", "--policy", policy, *store)
        assert (done.code, done.out) == (2, "")
        assert f"There is no store at {tmp_path}/" in done.err
    used = used_store(tmp_path)
    done = llm_budget("status", "--policy", policy, "--store", used, LLM_BUDGET_LEDGER="sqlite:///nowhere.db")
    assert (done.code, f"There is no ledger at {tmp_path / 'nowhere.db'}" in done.err) == (2, True)
    assert {path.name for path in tmp_path.iterdir()} == {"budgets.toml", "b.db"}


def test_a_variable_that_is_wrong_is_named(policy: Path, tmp_path: Path) -> None:
    fine = {"LLM_BUDGET_STORE": used_store(tmp_path), "LLM_BUDGET_POLICY": str(policy), "LLM_BUDGET_LEDGER": ""}
    assert llm_budget("status", **fine).code == 0
    for name in fine:
        done = llm_budget("status", **{**fine, name: "nope://x"})
        assert (done.code, done.err.startswith(f"{name}: ")) == (2, True), done.err


def test_the_secret_of_a_webhook_is_the_services_alone(policy: Path, tmp_path: Path) -> None:
    policy.write_text(POLICY + '[webhook]\nurl = "https://example.com/"\n', encoding="utf-8")
    assert llm_budget("status", LLM_BUDGET_STORE=used_store(tmp_path), LLM_BUDGET_POLICY=str(policy)).code == 0


def test_it_reads_a_preset_too(tmp_path: Path) -> None:
    done = llm_budget("status", "--store", used_store(tmp_path), "--preset", "zeno", "--json")
    assert [line["budget"] for line in done.json["budgets"]] == ["global-day"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "llm-budget check --preset zeno --print > budgets.toml"),
        (("--user", "u1"), "--tenant"),
        (("--store", "sqlite:///x.db"), "Which policy"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(args: tuple[str, ...], said: str, monkeypatch: Any) -> None:
    monkeypatch.delenv("LLM_BUDGET_POLICY", raising=False)
    done = llm_budget("status", *args)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.fixture
def watching(policy: Path, tmp_path: Path) -> Any:
    url = f"sqlite:///{tmp_path / 'b.db'}"
    spend(url, policy, "0.5")
    started: list[Any] = []

    def watch(*args: str) -> subprocess.Popen[str]:
        start = "from llm_budget_hooks.cli import app; app()"
        command = [sys.executable, "-c", start, "status", "--watch", "--every", "0.1", "--store", url, *args]
        env = {**os.environ, "FORCE_COLOR": "1"}
        run = [*command, "--policy", str(policy), *WHOSE]
        started.append(subprocess.Popen(run, stdout=subprocess.PIPE, text=True, env=env))
        return started[-1]

    yield watch, lambda amount: spend(url, policy, amount)
    for one in started:
        one.kill()
        one.wait()
        one.stdout.close()


def test_watching_shows_what_is_spent_meanwhile_and_ends_well_on_ctrl_c(watching: Any) -> None:
    watch, spends = watching
    running = watch("--json")
    assert json.loads(running.stdout.readline())["budgets"][1]["spent"] == "0.5"
    spends("0.25")
    while json.loads(running.stdout.readline())["budgets"][1]["spent"] != "0.75":
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    running.communicate()
    assert running.returncode == 0


def test_watching_draws_the_table_again(watching: Any) -> None:
    watch, spends = watching
    running = watch()
    seen = ""
    while "$0.50" not in seen:
        seen += running.stdout.readline()
    spends("0.25")
    while "$0.75" not in seen:
        seen += running.stdout.readline()
    running.send_signal(signal.SIGINT)
    running.communicate()
    assert running.returncode == 0


def test_amounts_have_as_many_digits_as_they_need() -> None:
    amounts = ("2", "0.1", "0.00013", "0.0000111", "1234.5", "0.000000001")
    assert [shown("usd", Decimal(amount)) for amount in amounts] == [
        "$2.00", "$0.10", "$0.00013", "$0.0000111", "$1,234.50", "$0.000000001",
    ]  # fmt: skip
    assert (shown("usd", None), shown("calls", 1200)) == ("unread", "1,200")
