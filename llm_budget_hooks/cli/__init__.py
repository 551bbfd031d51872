"""The command ``llm-budget``. Nothing heavy is imported before a subcommand runs."""

from __future__ import annotations

from typing import Annotated

import typer

import llm_budget_hooks
from llm_budget_hooks.errors import BudgetError

app = typer.Typer(
    name="llm-budget",
    help="Budgets for LLM calls: decided before the provider is called, booked after.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="sqlite:///path, redis://host:6379/0 or memory://; left out: a temporary SQLite file."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Pay for some 70 short calls of this model at its real provider."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llm-budget {llm_budget_hooks.__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")]


@app.callback()
def main(version: Version = False) -> None:
    """Budgets for LLM calls: decided before the provider is called, booked after."""


@app.command()
def demo(store: Store = None, model: Model = None, as_json: AsJson = False) -> None:
    """Race 50 calls against a limit worth 10, without and with this package; then cap an agent.

    Everything is real but the provider, which runs on loopback and answers without costing anything; with --model it
    is the real one.
    """
    from llm_budget_hooks.cli.demo import run

    try:
        run(store, model, as_json)
    except BudgetError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
