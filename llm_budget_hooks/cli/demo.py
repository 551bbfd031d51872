"""The demo: a race of concurrent calls and a capped agent, on real HTTP and a real store."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from llm_budget_hooks import BudgetEngine, Call, ConfigurationError, StoreUnavailable
from llm_budget_hooks.cli import agent, race, screen
from llm_budget_hooks.cli.aside import Aside
from llm_budget_hooks.cli.target import FAKE_MODEL, Target, check_key, needed, present
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
        present("langgraph", "langgraph")
        present("langchain_openai", "langchain-openai")
        if model is not None:
            _import_litellm(bar)
            check_key(model)
        with Aside(partial(_fan_out, url, model), bar.told) as answers:
            _import_litellm(bar)
            with Target(model) as target:
                findings.model = target.model
                _compare(target, url, findings, bar)
            bar.says("importing LangGraph, asking the agent")
            findings.answers = answers.result()
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


def _fan_out(url: str, model: str | None, told: Connection) -> list[agent.Answer]:
    """The agent's two answers, asked in another process."""
    warnings.simplefilter("ignore")
    logging.getLogger("langchain_core").setLevel(logging.CRITICAL)
    with _uncollected():
        needed("langgraph.graph", "langgraph")
        needed("langchain_openai", "langchain-openai")
    told.send(None)
    price = _price(model or FAKE_MODEL)
    with Target(model) as target, _engine(url, agent.policy_for(price)) as engine:
        features = agent.ceilings_for(price)
        return [agent.ask(target, engine, price, feature, lambda: told.send(None)) for feature in features]


def _import_litellm(bar: Bar) -> None:
    """Import LiteLLM, once it is known that the store answers."""
    if "litellm" in sys.modules:
        return
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    warnings.simplefilter("ignore")
    bar.says("importing LiteLLM")
    with _uncollected():
        import litellm
    bar.step()
    litellm.suppress_debug_info = True
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)


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
    return BudgetEngine.open(
        url, {"namespace": f"demo-{uuid.uuid4().hex[:12]}", "estimate": "bound", "store_timeout": "10s", **policy}
    )


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

    def told(self, text: str | None) -> None:
        """Show what another process says, or that it is a step further."""
        if text is None:
            self.step()
        else:
            self.says(text)

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
