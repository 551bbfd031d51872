"""Work in another process: what it says, what it returns, and how it fails."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from llm_budget_hooks import BudgetExceeded
from llm_budget_hooks.cli.aside import Aside


def talks(there: Any) -> int:
    there.send("begun")
    there.send(None)
    return os.getpid()


def is_refused(_: Any) -> None:
    raise BudgetExceeded("No.", code="spend", budget="user-day")


def dies(_: Any) -> None:
    os._exit(7)


def hangs(there: Any) -> None:
    there.send("begun")
    threading.Event().wait()


def test_what_it_says_is_told_and_what_it_returns_is_the_result() -> None:
    told: list[str | None] = []
    with Aside(talks, told.append) as aside:
        assert aside.result() != os.getpid()
    assert told == ["begun", None]


def test_a_refusal_comes_across_with_its_facts() -> None:
    with Aside(is_refused, print) as aside, pytest.raises(BudgetExceeded, match="No") as caught:
        aside.result()
    assert caught.value.budget == "user-day"


def test_a_process_that_dies_is_an_error_with_its_exit_code() -> None:
    with Aside(dies, print) as aside, pytest.raises(RuntimeError, match="exit code 7"):
        aside.result()


def test_leaving_it_ends_a_process_that_hangs() -> None:
    aside = Aside(hangs, print)
    with aside:
        assert aside._process.is_alive()
    assert not aside._process.is_alive()
