"""``llm-budget whatif`` on a real ledger: what it prints, as text and as JSON, and its exit codes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.cli import app

BEGAN = datetime(2026, 11, 1, 9, tzinfo=UTC)
POLICY = """
[[budgets]]
name = "user-day"
scope = "user"
limit = "$1"
window = "day"
"""


@pytest.fixture
def kept(tmp_path: Path) -> str:
    """The URL of a ledger with three calls on each of two days."""
    (tmp_path / "tight.toml").write_text(POLICY, encoding="utf-8")
    (tmp_path / "wide.toml").write_text(POLICY.replace("$1", "$100"), encoding="utf-8")
    now = [BEGAN]
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with BudgetEngine.open("memory://", {}, clock=lambda: now[0], ledger=url) as engine:
        for number in range(6):
            now[0] = BEGAN + timedelta(days=number // 3, minutes=number)
            held = engine.reserve(Call(model="m", tenant="acme", user=f"u{number // 3}", amount="0.40"))
            engine.settle(held, cost="0.40")
    return url


def llm_budget(*args: object, **environment: str) -> Any:
    return CliRunner().invoke(app, [*map(str, args)], env={"COLUMNS": "120", **environment})


def test_tables_and_bars_show_what_would_have_been_refused(kept: str, tmp_path: Path) -> None:
    done = llm_budget("whatif", tmp_path / "tight.toml", "--ledger", kept)
    assert done.exit_code == 1
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stdout.startswith("2 refusals, 2 of 6 calls not made, $0.80 of $2.40 saved")
    assert ["user-day", "2", "2", "$0.80", "11-01", "09:02", "11-02", "09:05"] in lines
    assert ["acme", "/", "u0", "1", "1", "$0.40", "11-01", "09:02", "11-01", "09:02"] in lines
    assert ["2026-11-01", "█" * 27 + "░" * 13, "$1.20", "$0.40", "1"] in lines


def test_json_has_every_refusal_and_day(kept: str, tmp_path: Path) -> None:
    done = llm_budget("whatif", tmp_path / "tight.toml", "--json", LLM_BUDGET_LEDGER=kept)
    figures = json.loads(done.stdout)
    assert (figures["calls"], figures["not_made"], figures["saved"], figures["spent"]) == (6, 2, "0.8", "2.4")
    assert [(one["at"], one["user"], one["saved"], one["code"]) for one in figures["refused"]] == [
        ("2026-11-01T09:02:00+00:00", "u0", "0.4", "spend"),
        ("2026-11-02T09:05:00+00:00", "u1", "0.4", "spend"),
    ]
    assert figures["days"][1] == {"day": "2026-11-02", "spent": "1.2", "saved": "0.4", "refused": 1}


def test_a_policy_that_refuses_nobody_exits_with_0(kept: str, tmp_path: Path) -> None:
    done = llm_budget("whatif", tmp_path / "wide.toml", "--ledger", kept)
    assert (done.exit_code, done.stdout) == (0, "0 refusals, 0 of 6 calls not made, $0.00 of $2.40 saved\n")


def test_a_span_is_of_the_policys_zone(kept: str, tmp_path: Path) -> None:
    span = ("--since", "2026-11-02", "--until", "2026-11-03", "--tenant", "acme", "--json")
    done = llm_budget("whatif", tmp_path / "tight.toml", "--ledger", kept, *span)
    assert json.loads(done.stdout)["calls"] == 3
    nobody = llm_budget("whatif", tmp_path / "tight.toml", "--ledger", kept, "--tenant", "zeta")
    assert (nobody.exit_code, nobody.stdout) == (0, "The ledger has no calls in this span.\n")


def test_a_budget_that_is_off_is_named(kept: str, tmp_path: Path) -> None:
    own = f'{POLICY}[[tenants.zeta.budgets]]\nname = "user-day"\nscope = "user"\nlimit = "$0"\nwindow = "day"\n'
    (tmp_path / "off.toml").write_text(own.replace("$1", "$0"), encoding="utf-8")
    done = llm_budget("whatif", tmp_path / "off.toml", "--ledger", kept)
    assert done.stdout.splitlines()[1:] == [
        "user-day refuses nobody: a limit of 0 switches it off.",
        "zeta.user-day refuses nobody: a limit of 0 switches it off.",
    ]
    told = llm_budget("whatif", tmp_path / "off.toml", "--ledger", kept, "--json")
    assert json.loads(told.stdout)["off"] == ["user-day", "zeta.user-day"]


def test_a_span_that_ends_before_it_begins_is_a_mistake(kept: str, tmp_path: Path) -> None:
    backwards = ("--since", "2026-11-03", "--until", "2026-11-01")
    done = llm_budget("whatif", tmp_path / "tight.toml", "--ledger", kept, *backwards)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "a first instant and a later one" in done.stderr


def test_the_runs_are_shown_without_a_policy(kept: str, monkeypatch: Any) -> None:
    monkeypatch.delenv("LLM_BUDGET_POLICY", raising=False)
    done = llm_budget("runs", "--ledger", kept, "--json", "--limit", "2")
    assert (done.exit_code, [row["cost"] for row in json.loads(done.stdout)["items"]]) == (0, ["0.4", "0.4"])
    monkeypatch.delenv("LLM_BUDGET_LEDGER", raising=False)
    assert "Which ledger?" in llm_budget("runs").stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("whatif", "--preset", "zeno"), "Which ledger?"),
        (("whatif", "--ledger", "sqlite:///no/such.db"), "Which policy?"),
        (
            ("whatif", "--preset", "zeno", "--ledger", "sqlite:///no/such.db"),
            "/no/such.db: no call was written to it yet",
        ),
        (("whatif", "--preset", "zeno", "--ledger", "mysql://x/y"), "is not supported"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(args: tuple[str, ...], said: str, monkeypatch: Any) -> None:
    monkeypatch.delenv("LLM_BUDGET_LEDGER", raising=False)
    monkeypatch.delenv("LLM_BUDGET_POLICY", raising=False)
    done = llm_budget(*args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
