"""What importing the package costs and brings, and what a wheel of it contains."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import llm_budget_hooks

ROOT = Path(__file__).parent.parent
HEAVY = ("litellm", "langchain_core", "langgraph", "redis", "sqlalchemy", "fastapi", "typer", "rich", "httpx")
PUBLIC = (
    "AlreadyResolved",
    "Budget",
    "BudgetEngine",
    "BudgetError",
    "BudgetExceeded",
    "BudgetStatus",
    "Call",
    "ConfigurationError",
    "Policy",
    "PriceUnknown",
    "Reservation",
    "ReservationConflict",
    "StoreUnavailable",
    "Usage",
    "Utterance",
)


def python(code: str) -> str:
    run = [sys.executable, "-c", code]
    return subprocess.run(run, check=True, capture_output=True, text=True, timeout=60).stdout


def test_it_imports_no_framework_no_redis_client_and_no_sql_toolkit() -> None:
    names = python(f"import llm_budget_hooks, sys; print(*(n for n in {HEAVY} if n in sys.modules))")
    assert names.split() == []


def test_it_imports_neither_its_command_nor_its_integrations() -> None:
    loaded = python("import llm_budget_hooks, sys; print(*sys.modules)").split()
    tops = ("cli", "litellm", "langchain", "testing")
    assert [n for n in loaded if n.startswith(tuple(f"llm_budget_hooks.{top}" for top in tops))] == []


def test_an_engine_in_memory_needs_none_of_them_either() -> None:
    code = f"""
import sys
from llm_budget_hooks import BudgetEngine, Call
engine = BudgetEngine.open("memory://", {{"budgets": [{{"scope": "global", "limit": "$1", "window": "day"}}]}})
engine.settle(engine.reserve(Call(model="gpt-4o-mini", input_tokens=10, max_output_tokens=10)), cost="0.001")
print(*(n for n in {HEAVY} if n in sys.modules))
"""
    assert python(code).split() == []


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_names_are_there(name: str) -> None:
    assert name in llm_budget_hooks.__all__
    assert getattr(llm_budget_hooks, name).__doc__


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of the files in a wheel that is made of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    builder = f"WheelBuilder({str(ROOT)!r}).build(directory={str(folder)!r})"
    made = python(f"from hatchling.builders.wheel import WheelBuilder; print(next({builder}))")
    with zipfile.ZipFile(made.strip()) as archive:
        return archive.namelist()


def test_the_wheel_has_all_modules_scripts_and_the_marker_of_types(wheel: list[str]) -> None:
    package = ROOT / "llm_budget_hooks"
    wanted = [p for p in package.rglob("*") if p.suffix in (".py", ".lua", ".toml") or p.name == "py.typed"]
    assert {p.relative_to(ROOT).as_posix() for p in wanted} <= set(wheel)
    assert sum(name.endswith(".lua") for name in wheel) >= 4
    assert "llm_budget_hooks/py.typed" in wheel


def test_the_wheel_has_nothing_else(wheel: list[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel}
    assert tops == {"llm_budget_hooks", f"llm_budget_hooks-{llm_budget_hooks.__version__}.dist-info"}
    assert not [name for name in wheel if "__pycache__" in name or name.endswith((".db", ".pyc"))]
