"""What the demo found, as tables for people and as figures for programs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from llm_budget_hooks.cli.agent import PER_MINUTE, Answer
from llm_budget_hooks.cli.race import WORTH, Race
from llm_budget_hooks.errors import BudgetExceeded
from llm_budget_hooks.money import plain

if TYPE_CHECKING:
    from llm_budget_hooks.cli.demo import Findings


def show(findings: Findings, out: Console) -> None:
    """Print all tables."""
    offered = findings.races[0].offered
    out.print()
    out.print(Text(f"1  {offered} calls at once through LiteLLM, against a limit worth {WORTH}", style="bold"))
    out.print(_races(findings.races))
    out.print(Text("2  One question to a LangGraph agent: router, classifier, three tools, answer", style="bold"))
    out.print(_answers(findings.answers))
    out.print(Text("3  The refusals, as people see them", style="bold"))
    for refusal in _refusals(findings):
        out.print(_refusal(refusal))
    where = f"{findings.model}, {'its own provider' if findings.real else 'a provider on loopback'}"
    out.print(Text(f"{where}, store {findings.store}, {findings.seconds:.1f} s", style="dim"))


def figures(findings: Findings) -> dict[str, Any]:
    """The same as plain values; amounts are dollars as text, so that nothing is rounded."""
    return {
        "model": findings.model,
        "provider": "real" if findings.real else "fake",
        "store": findings.store,
        "seconds": round(findings.seconds, 2),
        "races": [_race_figures(race) for race in findings.races],
        "answers": [_answer_figures(answer) for answer in findings.answers],
        "refusals": [_refusal_figures(refusal) for refusal in _refusals(findings)],
    }


def _races(races: list[Race]) -> Table:
    table = _table("", "limit", "offered", "let through", "spent", "overshoot")
    for race in races:
        over = Text(f"{dollars(race.overshoot)} +{race.overshoot / race.limit:.0%}", "red")
        table.add_row(
            race.how, dollars(race.limit), str(race.offered), str(race.let_through), dollars(race.spent),
            over if race.overshoot else Text("none", "green"),
        )  # fmt: skip
    if all(race.requests is not None for race in races):
        counted = " and ".join(str(race.requests) for race in races)
        table.caption = f"The provider itself counted {counted} requests."
    return table


def _answers(answers: list[Answer]) -> Table:
    table = _table("feature", "ceiling", "utterances", "calls", "spent", "provider's bill", "outcome")
    for answer in answers:
        outcome = Text("answered", "green") if answer.served else Text("stopped", "yellow")
        billed = "-" if answer.billed is None else dollars(answer.billed)
        table.add_row(
            answer.feature, dollars(answer.ceiling), f"{answer.utterances} of {PER_MINUTE}/min", str(answer.calls),
            dollars(answer.spent), billed, outcome,
        )  # fmt: skip
    return table


def _refusal(refusal: BudgetExceeded) -> Panel:
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("the operator", "dim"), Text(str(refusal)))
    table.add_row(Text("the user", "dim"), Text(refusal.public_message))
    table.add_row(Text("when again", "dim"), Text(_again(refusal)))
    title = f"{refusal.code} · budget {refusal.budget} · HTTP {refusal.http_status}"
    return Panel(table, title=title, title_align="left", box=box.ROUNDED, expand=False)


def _again(refusal: BudgetExceeded) -> str:
    if refusal.retry_after is None:
        return "never, at this size"
    again = datetime.now(UTC) + timedelta(seconds=refusal.retry_after)
    return f"{again:%Y-%m-%d %H:%M} UTC"


def _refusals(findings: Findings) -> list[BudgetExceeded]:
    results: list[Race | Answer] = [*findings.races, *findings.answers]
    return [found.refusal for found in results if found.refusal is not None]


def _race_figures(race: Race) -> dict[str, Any]:
    return {
        "how": race.how,
        "limit": plain(race.limit),
        "offered": race.offered,
        "let_through": race.let_through,
        "requests": race.requests,
        "spent": plain(race.spent),
        "overshoot": plain(race.overshoot),
    }


def _answer_figures(answer: Answer) -> dict[str, Any]:
    return {
        "feature": answer.feature,
        "ceiling": plain(answer.ceiling),
        "served": answer.served,
        "utterances": answer.utterances,
        "utterance_limit": PER_MINUTE,
        "calls": answer.calls,
        "requests": answer.requests,
        "spent": plain(answer.spent),
        "billed": None if answer.billed is None else plain(answer.billed),
    }


def _refusal_figures(refusal: BudgetExceeded) -> dict[str, Any]:
    return {
        "code": refusal.code,
        "budget": refusal.budget,
        "operator": str(refusal),
        "public": refusal.public_message,
        "retry_after": refusal.retry_after,
        "resets_at": None if refusal.resets_at is None else refusal.resets_at.isoformat(),
        "http_status": refusal.http_status,
    }


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption_justify="left")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", no_wrap=True)
    return table


def dollars(amount: Decimal) -> str:
    """An amount with four decimals, as many as the demo's cents need."""
    return f"${amount:.4f}"
