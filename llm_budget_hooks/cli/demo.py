"""The demo: a race of concurrent calls and a capped agent, on real HTTP and a real store."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from llm_budget_hooks import BudgetEngine, Call, ConfigurationError, StoreUnavailable
from llm_budget_hooks.cli import agent, race, screen
from llm_budget_hooks.cli.target import FAKE_MODEL, Target, check_key, needed
from llm_budget_hooks.pricing import Price

_AGENT_CALLS = 11


@dataclass
class Findings:
    """All that the demo found out.

    Attributes:
        model: what was called.
        store: the scheme of the store.
        real: whether the provider was a real one.
        seconds: how long it took, imports included but for those of the command itself.
        races: without and with this package.
        answers: of the agent, one under its ceiling and one above.
    """

    model: str
    store: str
    real: bool
    seconds: float = 0.0
    races: list[race.Race] = field(default_factory=list)
    answers: list[agent.Answer] = field(default_factory=list)


def run(store: str | None, model: str | None, as_json: bool) -> None:
    """Run the demo and print what came of it.

    Args:
        store: URL of the store; None: a temporary SQLite file.
        model: a real provider's model; None: the provider on loopback.
        as_json: print the figures as JSON instead of tables.

    Raises:
        ConfigurationError: the store, the model or a missing package.
        StoreUnavailable: the store does not answer.
    """
    started = time.monotonic()
    with _store(store) as url, _progress() as bar:
        _answering(url)
        _price(model or FAKE_MODEL)
        findings = Findings(model or "", urlsplit(url).scheme, model is not None)
        _prepare(model, bar)
        with Target(model) as target:
            findings.model = target.model
            _compare(target, url, findings, bar)
            _fan_out(target, url, findings, bar)
    findings.seconds = time.monotonic() - started
    out = Console()
    if as_json:
        out.print_json(data=screen.figures(findings), highlight=False)
    else:
        screen.show(findings, out)


def _compare(target: Target, url: str, findings: Findings, bar: Bar) -> None:
    price = _price(target.model)
    limit = race.limit_for(price)
    target.play(None)
    bar.says("50 calls at once, check-then-charge")
    findings.races.append(asyncio.run(race.naive(target, price, limit, bar.step)))
    target.play(None)
    bar.says("50 calls at once, llm_budget_hooks")
    engine = _engine(url, {"budgets": [{"name": "user-day", "scope": "user", "limit": limit, "window": "day"}]})
    findings.races.append(asyncio.run(race.hooked(target, engine, limit, bar.step)))


def _fan_out(target: Target, url: str, findings: Findings, bar: Bar) -> None:
    price = _price(target.model)
    with _engine(url, agent.policy_for(price)) as engine:
        for feature in agent.ceilings_for(price):
            bar.says(f"one utterance, answer ceiling of {feature}")
            findings.answers.append(agent.ask(target, engine, price, feature, bar.step))


def _prepare(model: str | None, bar: Bar) -> None:
    """Import what is heavy, once it is known that the store answers."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    warnings.simplefilter("ignore")
    with _uncollected():
        bar.says("importing LangGraph")
        needed("langgraph.graph", "langgraph")
        needed("langchain_openai", "langchain-openai")
        bar.step()
        bar.says("importing LiteLLM")
        import litellm
    bar.step()
    litellm.suppress_debug_info = True
    for name in ("LiteLLM", "langchain_core"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if model is not None:
        check_key(model)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Leave what is made inside to the end of the process: the collector would take a third of the whole time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _store(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="llm-budget-", ignore_cleanup_errors=True) as folder:
        yield f"sqlite:///{Path(folder, 'demo.db')}"


def _engine(url: str, policy: Mapping[str, Any]) -> BudgetEngine:
    """An engine with balances of its own, also where an earlier demo has left some."""
    own = {"namespace": f"demo-{uuid.uuid4().hex[:12]}", "estimate": "bound", "store_timeout": "10s", "alert_at": ()}
    return BudgetEngine.open(url, {**own, **policy})


def _answering(url: str) -> None:
    with _engine(url, {"budgets": [{"scope": "global", "meter": "calls", "limit": 1, "window": "day"}]}) as engine:
        refusal = engine.check(Call(model="any", amount=0)).refusal
    if isinstance(refusal, StoreUnavailable):
        raise refusal


def _price(model: str) -> Price:
    with BudgetEngine.open("memory://") as engine:
        price = engine.prices.price(model)
    if price.is_free:
        raise ConfigurationError(f"{model} is free of charge: nothing to cap in dollars. Name another --model.")
    return price


class Bar:
    """The progress bar of the demo."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=2 + 2 * race.OFFERED + _AGENT_CALLS)

    def says(self, text: str) -> None:
        """Show what is being done."""
        self._progress.update(self._task, description=text)

    def step(self) -> None:
        """One call more is done."""
        self._progress.advance(self._task)


@contextmanager
def _progress() -> Iterator[Bar]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress)
