"""What a newcomer has from the command itself: completion, and help."""

from __future__ import annotations

from typing import Any

import pytest
from commands import llm_budget
from typer.main import get_command

from llm_budget_hooks.cli import app

GROUP: Any = get_command(app)


def completed(shell: str, typed: str) -> str:
    """What a shell offers after a line that ends as typed."""
    line = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    if shell != "bash":
        line = {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return llm_budget(_LLM_BUDGET_COMPLETE=f"complete_{shell}", **line).out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_and_presets(shell: str) -> None:
    assert "revive" in completed(shell, "llm-budget rev")
    assert "--policy" in completed(shell, "llm-budget status --pol")
    offered = completed(shell, "llm-budget check --preset llm")
    assert ("llm-budget-cap" in offered, "zeno" in offered) == (True, False)


@pytest.mark.parametrize("name", sorted(GROUP.commands))
def test_help_explains_each_option_and_all_commands_print_json(name: str) -> None:
    done = llm_budget(name, "--help")
    options = {option: one for one in GROUP.commands[name].params for option in (*one.opts, one.name)}
    assert (done.code, "--json" in options) == (0, True)
    assert [option for option, one in options.items() if not getattr(one, "help", None)] == []
    sentence = " ".join(GROUP.commands[name].help.split("\n\n")[-1].split())
    assert sentence.split(". ")[0] in " ".join(done.out.split())


def test_the_first_help_leads_from_a_demo_to_balances() -> None:
    done = llm_budget()
    steps = ("demo", "check --preset zeno --print > budgets.toml", "status --policy budgets.toml")
    assert [step for step in steps if f"llm-budget {step}" not in done.out] == []
    assert "Exit codes: 0 all is well, 1 something was found or refused, 2 wrong use." in done.out
