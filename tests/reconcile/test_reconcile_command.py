"""``llm-budget reconcile`` on a real ledger, against a file and a server: tables, JSON, exit codes."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from books_server import BooksServer
from rich.console import Console
from typer.testing import CliRunner

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.cli import app
from llm_budget_hooks.cli.reconcile import run, show
from llm_budget_hooks.ledger import Ledger
from llm_budget_hooks.models import Policy
from llm_budget_hooks.reconcile import Line, Reconciliation, open_books

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
SPAN = ("--since", "2026-11-01", "--until", "2026-11-02")


@pytest.fixture
def kept(tmp_path: Path) -> str:
    """The URL of a ledger with one call."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with BudgetEngine.open("memory://", {}, clock=lambda: NOON, ledger=url) as engine:
        engine.settle(engine.reserve(Call(model="gpt-4o", amount="0.40")), cost="0.40")
    return url


def used_store(folder: Path) -> str:
    """The URL of a store that an application has asked something."""
    url = f"sqlite:///{folder / 'store.db'}"
    with BudgetEngine.open(url, {}) as engine:
        engine.status()
    return url


@pytest.fixture
def bill(tmp_path: Path) -> Any:
    def write(cost: str) -> Path:
        path = tmp_path / "bill.csv"
        path.write_text(f"date,model,cost\n2026-11-01,gpt-4o-2024-08-06,{cost}\n", encoding="utf-8")
        return path

    return write


def llm_budget(*args: object, **environment: str) -> Any:
    return CliRunner().invoke(app, [*map(str, args)], env={"COLUMNS": "120", **environment})


def test_what_is_off_is_shown_with_its_cause_and_exit_code_1(kept: str, bill: Any) -> None:
    done = llm_budget("reconcile", bill("0.50"), "--ledger", kept, *SPAN)
    assert done.exit_code == 1
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["2026-11-01", "gpt-4o", "$0.4000", "$0.5000", "+20.0%", "not", "known"] in lines
    assert "1 of 1 are off by more than 5 %." in done.stdout


def test_what_agrees_exits_with_0(kept: str, bill: Any) -> None:
    done = llm_budget("reconcile", bill("0.41"), *SPAN, LLM_BUDGET_LEDGER=kept)
    assert done.exit_code == 0
    assert "Nothing is off by more than 5 %." in done.stdout


def test_json_has_every_digit(kept: str, bill: Any) -> None:
    done = llm_budget("reconcile", bill("0.5000000001"), "--ledger", kept, *SPAN, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {
        "since": "2026-11-01", "until": "2026-11-02", "flagged": 1,
        "lines": [{
            "day": "2026-11-01", "model": "gpt-4o", "ledger": "0.4", "billed": "0.5000000001",
            "difference": "0.1000000001", "flagged": True, "final": True, "cause": "not known",
        }],
    }  # fmt: skip


def test_what_is_flagged_can_be_booked_once(kept: str, bill: Any, tmp_path: Path) -> None:
    rules = '[[budgets]]\nname = "all"\nscope = "global"\nlimit = "$50"\nwindow = "month"\n'
    (tmp_path / "budgets.toml").write_text(rules, encoding="utf-8")
    store = used_store(tmp_path)
    booked = ("--book", "--store", store, "--policy", tmp_path / "budgets.toml", "--ledger", kept)
    first = llm_budget("reconcile", bill("0.50"), *booked, *SPAN)
    assert first.exit_code == 1
    assert "Booked +$0.1000 as 1 correction, in the windows of today" in first.stdout
    second = llm_budget("reconcile", bill("0.50"), *booked, *SPAN)
    assert (second.exit_code, "Booked" in second.stdout) == (0, False)
    third = llm_budget("reconcile", bill("0.20"), *booked, *SPAN, "--json")
    assert (third.exit_code, json.loads(third.stdout)["booked"]) == (1, "-0.1")  # more was never spent in this window
    with BudgetEngine.open(store, tmp_path / "budgets.toml") as engine:
        assert engine.status()[0].spent == 0


def test_what_a_process_has_booked_and_not_written_is_not_booked_again(kept: str, bill: Any, tmp_path: Path) -> None:
    rules = '[[budgets]]\nname = "all"\nscope = "global"\nlimit = "$50"\nwindow = "month"\n'
    (tmp_path / "budgets.toml").write_text(rules, encoding="utf-8")
    store = used_store(tmp_path)
    dies = f"""
import os
from llm_budget_hooks import BudgetEngine
engine = BudgetEngine.open({store!r}, {str(tmp_path / "budgets.toml")!r}, ledger={kept!r})
engine.adjust(cost="0.10", reason="reconcile 2026-11-01 gpt-4o: not known")
os._exit(0)
"""
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        subprocess.run([sys.executable, "-c", dies], check=True, timeout=60)
    booked = ("--book", "--store", store, "--policy", tmp_path / "budgets.toml", "--ledger", kept)
    done = llm_budget("reconcile", bill("0.50"), *booked, *SPAN)
    assert (done.exit_code, "Booked" in done.stdout) == (0, False)
    with BudgetEngine.open(store, tmp_path / "budgets.toml") as engine:
        assert engine.status()[0].spent == Decimal("0.10")


def test_a_run_that_booked_nothing_says_why(kept: str, bill: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Ledger.open(kept)) as ledger, pytest.raises(typer.Exit):
        run(
            ledger, open_books(str(bill("0.50"))), Policy(), NOON, NOON + timedelta(days=1), False, lambda _: Decimal(0)
        )
    assert "Booked nothing: it is booked already and not in the ledger yet" in capsys.readouterr().out


def test_an_alias_of_the_policy_is_known(kept: str, tmp_path: Path) -> None:
    (tmp_path / "budgets.toml").write_text('[aliases]\nprod-chat = "gpt-4o"\n', encoding="utf-8")
    (tmp_path / "bill.json").write_text('[{"day": "2026-11-01", "model": "prod-chat", "cost": 0.4}]', encoding="utf-8")
    named = ("--ledger", kept, "--policy", tmp_path / "budgets.toml")
    assert llm_budget("reconcile", tmp_path / "bill.json", *named, *SPAN).exit_code == 0


def test_the_proxys_logs_are_read_with_a_key_that_is_never_printed(kept: str) -> None:
    row = {"model": "gpt-4o", "spend": 0.9, "status": "success", "startTime": "2026-11-01T10:00:00Z"}
    with BooksServer() as server:
        server.routes = {"/spend/logs/v2": lambda _: {"data": [row], "total_pages": 1}}
        done = llm_budget(
            "reconcile", "litellm", "--ledger", kept, *SPAN, LITELLM_PROXY_API_KEY="sk-seen-by-nobody",
            LITELLM_PROXY_API_BASE=server.url,
        )  # fmt: skip
        assert server.requests[0][2]["Authorization"] == "Bearer sk-seen-by-nobody"
    assert (done.exit_code, "$0.9000" in done.stdout) == (1, True)
    away_at = ("--ledger", kept, "--url", "http://127.0.0.1:1")
    away = llm_budget("reconcile", "litellm", *away_at, LITELLM_PROXY_API_KEY="sk-seen-by-nobody")
    assert (away.exit_code, away.stdout) == (1, "")
    assert "could not be read" in away.stderr
    assert "sk-seen" not in done.stdout + done.stderr + away.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("openai",), "OPENAI_ADMIN_KEY is not set"),
        (("no-such.csv",), "is neither openai"),
        (("litellm", "--url", "ftp://x"), "no URL"),
        (("litellm", "--url", "http://[::1"), "no URL"),
        (("litellm", "--url", "http://localhost:99999"), "no URL"),
        (("litellm", "--url", "http://x", "--provider", "openai"), "these are the books of litellm"),
        ((__file__, "--provider", "nosuch"), "'nosuch' is no provider"),
        ((__file__, "--provider", "antropic"), "did you mean anthropic?"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(
    kept: str, args: tuple[str, ...], said: str, monkeypatch: Any
) -> None:
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    monkeypatch.setenv("LITELLM_PROXY_API_KEY", "sk")
    done = llm_budget("reconcile", *args, "--ledger", kept)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_nothing_is_booked_in_a_store_that_ends_with_the_command(kept: str, bill: Any, tmp_path: Path) -> None:
    (tmp_path / "budgets.toml").write_text('[[budgets]]\nscope = "global"\nlimit = "$50"\nwindow = "day"\n')
    private = ("--book", "--store", "memory://", "--policy", tmp_path / "budgets.toml", "--ledger", kept)
    done = llm_budget("reconcile", bill("0.50"), *private, *SPAN)
    assert done.exit_code == 2
    assert "ends with this command" in done.stderr
    assert llm_budget("reconcile", bill("0.50"), "--ledger", kept, *SPAN).exit_code == 1


@pytest.mark.parametrize(
    ("since", "until", "days"),
    [
        ("2026-10-31T23:00:00-02:00", "2026-11-02", ("2026-11-01", "2026-11-02")),
        ("2026-11-01T01:00:00+02:00", "2026-11-02", ("2026-10-31", "2026-11-02")),
        ("2026-11-01", "2026-11-03T01:00:00+02:00", ("2026-11-01", "2026-11-02")),
        ("2026-11-01T00:00:00", "2026-11-02T00:00:00+00:00", ("2026-11-01", "2026-11-02")),
    ],
)
def test_the_span_is_of_utc_days_whatever_the_offset(
    kept: str, bill: Any, since: str, until: str, days: tuple[str, str]
) -> None:
    done = llm_budget("reconcile", bill("0.40"), "--ledger", kept, "--since", since, "--until", until, "--json")
    found = json.loads(done.stdout)
    assert (found["since"], found["until"]) == days


def line(day: int, *, billed: str = "0.4", cause: str = "", final: bool = True) -> Line:
    return Line(date(2026, 11, day), "gpt-4o", Decimal("0.4"), Decimal(billed), cause, bool(cause) and final, final)


def beyond(day: int) -> Line:
    return replace(line(day, billed="0.1", cause="x"), flagged=False)


@pytest.mark.parametrize(
    ("lines", "doubt", "said"),
    [
        ([line(1), line(2)], "", "Nothing is off by more than 5 %."),
        ([line(1), line(2, billed="0.1", cause="x")], "", "1 of 2 are off by more than 5 %."),
        (
            [line(1), line(2, billed="0.1", cause="the day may still grow", final=False)], "",
            "Of what is final, nothing is off by more than 5 %. 1 of 2 is of a day that may still grow.",
        ),
        (
            [line(2, billed="0.1", cause="the day may still grow", final=False), line(3, final=False)], "",
            "Nothing is final yet. 2 of 2 are of days that may still grow.",
        ),
        (
            [line(1, billed="1", cause="x"), line(2, final=False)], "",
            "1 of 2 are off by more than 5 %. 1 of 2 is of a day that may still grow.",
        ),
        (
            [line(1), beyond(2)], "",
            "Of what can be compared, nothing is off by more than 5 %. 1 of 2 has calls that these books do not know",
        ),
        ([beyond(1), beyond(2)], "", "Nothing can be compared. 2 of 2 have calls that these books do not know of."),
        ([line(1, billed="1", cause="x")], "Whose is it? No booking", "1 of 1 are off by more than 5 %. Whose is it?"),
    ],
)  # fmt: skip
def test_the_last_line_says_what_was_seen(lines: list[Line], doubt: str, said: str) -> None:
    out = Console(file=StringIO(), width=200)
    show(Reconciliation(tuple(lines), doubt), out)
    assert said in out.file.getvalue().splitlines()[-1]


def test_books_that_say_nothing_are_not_booked_and_that_is_wrong_use(kept: str, tmp_path: Path) -> None:
    rules = '[[budgets]]\nname = "all"\nscope = "global"\nlimit = "$50"\nwindow = "month"\n'
    (tmp_path / "budgets.toml").write_text(rules, encoding="utf-8")
    store = used_store(tmp_path)
    named = ("--ledger", kept, "--policy", tmp_path / "budgets.toml", "--store", store)
    with BooksServer() as server:
        server.routes = defaultdict(lambda: lambda _: {"data": [], "has_more": False})
        address = ("--url", server.url)
        told = llm_budget("reconcile", "openai", *address, *named, *SPAN, OPENAI_ADMIN_KEY="sk")
        assert (told.exit_code, "have no amount of this span" in " ".join(told.stdout.split())) == (1, True)
        done = llm_budget("reconcile", "openai", "--book", *address, *named, *SPAN, OPENAI_ADMIN_KEY="sk")
    assert (done.exit_code, "nothing is booked" in done.stderr, "Booked" in done.stdout) == (2, True, False)
    bill = tmp_path / "bill.csv"
    bill.write_text("date,model,cost\n2026-11-01,azure/gpt-4o,0.10\n")
    done = llm_budget("reconcile", bill, "--book", *named, *SPAN)
    assert (done.exit_code, "Name their provider (--provider)" in done.stderr) == (2, True)
    done = llm_budget("reconcile", bill, "--book", "--provider", "openai", *named, *SPAN)
    assert (done.exit_code, "Booked -$0" in done.stdout) == (1, False)


def test_only_what_can_be_is_said_to_be_booked(kept: str, bill: Any, tmp_path: Path) -> None:
    with BudgetEngine.open("memory://", {}, clock=lambda: NOON, ledger=kept) as engine:
        engine.settle(engine.reserve(Call(model="gpt-4o-mini", amount="0.40")), cost="0.40")
    rules = '[[budgets]]\nname = "all"\nscope = "global"\nlimit = "$50"\nwindow = "month"\n'
    (tmp_path / "budgets.toml").write_text(rules, encoding="utf-8")
    named = ("--ledger", kept, "--policy", tmp_path / "budgets.toml", "--store", used_store(tmp_path))
    done = llm_budget("reconcile", bill("0.50"), "--book", *named, *SPAN)
    assert "Booked +$0.1000 as 1 correction, in the windows of today" in done.stdout
    again = llm_budget("reconcile", bill("0.50"), "--book", *named, *SPAN)
    assert (again.exit_code, "Nothing is booked: these books cannot say how much is owed." in again.stdout) == (
        1,
        True,
    )


def test_the_policy_of_the_environment_is_the_policy(kept: str, tmp_path: Path) -> None:
    (tmp_path / "budgets.toml").write_text('[aliases]\nprod-chat = "gpt-4o"\n', encoding="utf-8")
    (tmp_path / "bill.json").write_text('[{"day": "2026-11-01", "model": "prod-chat", "cost": 0.4}]', encoding="utf-8")
    named = {"LLM_BUDGET_LEDGER": kept, "LLM_BUDGET_POLICY": str(tmp_path / "budgets.toml")}
    assert llm_budget("reconcile", tmp_path / "bill.json", *SPAN, **named).exit_code == 0


def test_what_a_store_has_not_given_to_the_ledger_yet_is_compared_too(tmp_path: Path) -> None:
    rules = '[[budgets]]\nname = "all"\nscope = "global"\nlimit = "$50"\nwindow = "month"\n'
    (tmp_path / "budgets.toml").write_text(rules, encoding="utf-8")
    store, ledger = f"sqlite:///{tmp_path / 'store.db'}", f"sqlite:///{tmp_path / 'ledger.db'}"
    dies = f"""
import os
from llm_budget_hooks import BudgetEngine, Call
engine = BudgetEngine.open({store!r}, {str(tmp_path / "budgets.toml")!r}, ledger={ledger!r})
engine.ledger.runs()
engine.charge(Call(model="gpt-4o"), cost="0.40")
engine.flush()
engine.charge(Call(model="gpt-4o"), cost="0.10")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", dies], check=True, timeout=60)
    today = datetime.now(UTC).date()
    (tmp_path / "bill.csv").write_text(f"date,model,cost\n{today},gpt-4o,0.50\n", encoding="utf-8")
    named = ("--ledger", ledger, "--policy", tmp_path / "budgets.toml", "--store", store)
    span = ("--since", str(today), "--until", str(today + timedelta(days=1)))
    done = llm_budget("reconcile", tmp_path / "bill.csv", *named, *span, "--json")
    assert json.loads(done.stdout)["lines"][0]["ledger"] == "0.5"
