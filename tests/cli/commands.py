"""Runs the command in this process, as typer's own runner does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.cli import app


def used_store(folder: Path) -> str:
    """The URL of a store that an application has asked something."""
    url = f"sqlite:///{folder / 'b.db'}"
    with BudgetEngine.open(url, {}) as engine:
        engine.status()
    return url


@dataclass
class Ran:
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def llm_budget(*args: object, width: int = 100, **environment: str) -> Ran:
    """Run ``llm-budget`` with these arguments."""
    done = CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": str(width), **environment})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ran(done.exit_code, done.stdout, done.stderr)
