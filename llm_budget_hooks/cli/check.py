"""``llm-budget check``: a policy in sentences, and what is amiss with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from llm_budget_hooks.cli.findings import Finding, in_policy, in_store
from llm_budget_hooks.cli.opened import FINDING, policy_of, print_json
from llm_budget_hooks.cli.sentences import sentence
from llm_budget_hooks.models import Policy
from llm_budget_hooks.presets import preset_text


def run(
    path: Path | None, preset: str | None, per: str | None, printed: bool, store: str | None, models: list[str],
    as_json: bool,
) -> None:  # fmt: skip
    """Explain a policy, print its findings, and exit with 1 if there are any.

    Args:
        path: of the policy file.
        preset: the name of a preset instead.
        per: whom the preset's one counter is for.
        printed: print the preset's file and nothing else.
        store: URL of the store that the policy is to be used with.
        models: whose prices to estimate with.
        as_json: print JSON.

    Raises:
        ConfigurationError: the policy or the store is wrong.
    """
    if printed:
        typer.echo(preset_text(preset or "", per), nl=False)
        return
    policy = Policy.preset(preset, per=per) if preset and per else policy_of(path, preset)  # type: ignore[arg-type]  # preset_text says what it takes
    found = in_policy(policy, models) + (in_store(store, policy) if store else [])
    if as_json:
        print_json({"budgets": [*_explained(policy)], "findings": [one._asdict() for one in found]})
    else:
        _show(policy, found)
    if found:
        raise typer.Exit(FINDING)


def _explained(policy: Policy) -> Iterator[dict[str, Any]]:
    for tenant, budget in policy.written():
        yield {
            "name": budget.name,
            "tenant": tenant,
            "off": not budget.limit_units,
            "sentence": sentence(budget, policy.timezone, tenant),
        }


def _show(policy: Policy, found: list[Finding]) -> None:
    out, lines = Console(soft_wrap=True, highlight=False), [*_explained(policy)]
    for line in lines:
        name = line["name"] if line["tenant"] is None else f"{line['tenant']}.{line['name']}"
        out.print(Text.assemble((name, "bold"), "  ", (line["sentence"], "dim" if line["off"] else "")))
    out.print()
    off = [line["name"] for line in lines if line["off"]]
    if off:
        out.print(Text(f"Switched off by a limit of 0, so that nobody is refused: {', '.join(off)}."))
    for finding in found:
        out.print(Text.assemble(("! ", "red"), (finding.place, "bold"), f"  {finding.text}"))
    if not found:
        out.print(Text(f"Nothing{' else' if off else ''} is amiss.", "green"))
