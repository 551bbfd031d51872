"""The README's session with the command prints what it says there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import llm_budget

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.split("## The command line\n")[1].split("\n## ")[0]
START = "from llm_budget_hooks.cli import app; app()"


def test_the_session_prints_what_the_readme_shows(tmp_path: Path) -> None:
    (session,) = re.findall(r"^```console\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
    lines = session.splitlines()
    commands = [line.removeprefix("$ llm-budget ") for line in lines if line.startswith("$ ")]
    printed = ""
    for command in commands:
        arguments, _, into = command.partition(" > ")
        run = [sys.executable, "-c", START, *arguments.split()]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ})
        if into:
            (tmp_path / into).write_text(done.stdout, encoding="utf-8")
        else:
            printed += done.stdout
    assert printed.splitlines() == [line for line in lines if not line.startswith("$ ")]
    assert len(commands) == 2


@pytest.mark.parametrize("command", re.findall(r"^\| `llm-budget (\w+)", SECTION, re.MULTILINE))
def test_each_command_of_the_table_is_there_with_its_options(command: str) -> None:
    shown = llm_budget(command, "--help")
    assert (shown.code, "--json" in shown.out) == (0, True)


def test_the_table_names_every_command_and_each_preset() -> None:
    listed = set(re.findall(r"^[│|] (\w+)", llm_budget("--help").out.split("Commands")[1], re.MULTILINE))
    assert listed == set(re.findall(r"^\| `llm-budget (\w+)", SECTION, re.MULTILINE))
    presets = README.split("## Presets\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `([a-z-]+)`", presets, re.MULTILINE) == ["zeno", "llm-budget-cap", "pact", "daily-tokens"]
