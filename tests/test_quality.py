"""The tree shows the architecture, and these hold it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.timeout(600)  # mypy without its cache reads all of LiteLLM and LangChain
@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["mypy"],
        ["importlinter.cli", "lint_imports"],
    ],
    ids=lambda command: command[0].split(".")[0],
)
def test_static_checks_pass(command: list[str]) -> None:
    run = [sys.executable, "-m", *command]
    if command[0].startswith("importlinter"):
        run = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
