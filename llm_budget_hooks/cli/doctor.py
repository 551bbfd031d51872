"""``llm-budget doctor``: whether this installation, this store and these hooks really stop calls."""

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Callable, Iterator
from importlib import metadata
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple
from urllib.parse import quote

import typer
from rich.console import Console
from rich.text import Text

import llm_budget_hooks
from llm_budget_hooks.cli.findings import in_policy, in_store, is_redis
from llm_budget_hooks.cli.opened import FINDING, missing_ledger, print_json
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import BudgetError
from llm_budget_hooks.models import Call, Policy, instant
from llm_budget_hooks.stores.sqlite import path_of

Verdict = Literal["ok", "warning", "failed", "left out"]
_PACKAGES = ("litellm", "langchain-core", "langgraph", "pydantic", "redis")
_ROUNDS = 20
_SKEW_S = 2.0
_OLDEST = (6, 2)
_COLORS = {"ok": "green", "warning": "yellow", "failed": "red", "left out": "dim"}


class Result(NamedTuple):
    """What one look found."""

    what: str
    verdict: Verdict
    text: str


def run(url: str, policy: Policy, ledger: str | None, hooks: bool, as_json: bool) -> None:
    """Look at everything, print what was found, and exit with 1 if something warns or fails.

    Args:
        url: of the store.
        policy: the rules.
        ledger: URL of the ledger, None if there is none.
        hooks: whether to make the frameworks' hooks stop calls, which imports them.
        as_json: print JSON.

    Raises:
        ConfigurationError: a URL names no store or no ledger.
    """
    results = []
    out = Console(soft_wrap=True, highlight=False)
    for result in _looks(url, policy, ledger, hooks):
        results.append(result)
        if not as_json:
            mark = (f"{result.verdict:9}", _COLORS[result.verdict])
            out.print(Text.assemble(mark, (f"{result.what:15}", "bold"), result.text))
    if as_json:
        print_json({"results": [result._asdict() for result in results]})
    if any(result.verdict in ("warning", "failed") for result in results):
        raise typer.Exit(FINDING)


def _looks(url: str, policy: Policy, ledger: str | None, hooks: bool) -> Iterator[Result]:
    yield Result("versions", "ok", _versions())
    found = in_policy(policy)
    text = "; ".join(f"{one.place}: {one.text}" for one in found) or f"{len(policy.budgets)} budgets"
    yield Result("policy", "warning" if found else "ok", text)
    about_store = in_store(url, policy)
    yield from (Result("store", "warning" if url == "memory://" else "failed", one.text) for one in about_store)
    answers = url == "memory://" or not any("maxmemory" not in one.text for one in about_store)
    if answers:
        yield from _balances(url, policy)
        if is_redis(url):
            yield from _server(url, policy)
    if policy.on_store_error != "deny" and url != "memory://":
        yield _journal(url, policy)
    yield _ledger(ledger)
    if hooks:
        from llm_budget_hooks.cli.hooks import langchain_stops, litellm_stops

        yield _tried("LiteLLM", litellm_stops)
        yield _tried("LangChain", langchain_stops)


def _tried(what: str, look: Callable[[], Result]) -> Result:
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is what was found
        text = str(error) if isinstance(error, BudgetError) else f"{type(error).__name__}: {error}"
        return Result(what, "failed", text)


def _versions() -> str:
    def version(name: str) -> str:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            return f"no {name}"

    own = f"llm_budget_hooks {llm_budget_hooks.__version__}, Python {platform.python_version()}"
    return ", ".join([own, *map(version, _PACKAGES)])


def _journal(url: str, policy: Policy) -> Result:
    """Whether calls can be written down that are let through while the store is away."""
    from llm_budget_hooks.journal import Journal, JournalError, default_path

    path = default_path(url, policy.namespace)
    journal = Journal(path, policy.outbox_max, policy.store_timeout.total_seconds())
    try:
        journal.check()
    except JournalError as error:
        what = "nothing is let through" if policy.on_store_error == "bounded" else "nothing of it is booked later"
        return Result("journal", "warning", f"{error}: while the store is away, {what}")
    waits = "; some of it waits for the store" if journal.waiting() else ""
    return Result("journal", "ok", f"what is let through while the store is away is kept in {path}{waits}")


def _ledger(url: str | None) -> Result:
    """Begin to write and read; in a PostgreSQL without tables they are made, as an engine would."""
    if url is None:
        text = "none is named by --ledger or LLM_BUDGET_LEDGER: runs, refusals and events are kept nowhere"
        return Result("ledger", "left out", text)
    from llm_budget_hooks.ledger import Ledger, LedgerUnavailable

    ledger = Ledger.open(url)
    missing = missing_ledger(url)
    if missing is not None and not missing.parent.is_dir():
        return Result("ledger", "failed", f"{missing.parent} is no folder; make it, or name another path")
    if missing is not None:
        return Result("ledger", "left out", f"there is none at {missing} yet; the first call makes it")
    try:
        ledger.write(())
        last = ledger.runs(limit=1).items
    except LedgerUnavailable as error:
        return Result("ledger", "failed", str(error))
    finally:
        ledger.close()
    newest = f"the last run is of {instant(last[0].at_ms):%Y-%m-%d %H:%M} UTC" if last else "there is no run yet"
    return Result("ledger", "ok", f"can be written and read; {newest}")


def _balances(url: str, policy: Policy) -> Iterator[Result]:
    """Try the store; where its file is yet to be made, one beside it that is taken away again."""
    if not url.startswith("sqlite:") or (path := path_of(url)).exists():
        yield _tried("balances", lambda: _round_trips(url, policy))
        return
    yield Result("store", "left out", f"there is none at {path.absolute()} yet; the first call makes it")
    with TemporaryDirectory(dir=path.absolute().parent, prefix=".llm-budget-") as folder:
        yield _tried("balances", lambda: _round_trips(f"sqlite:///{quote(folder)}/tried.db", policy))


def _round_trips(url: str, policy: Policy) -> Result:
    """Reserve and release in a namespace of its own, and see that a second hold is refused meanwhile."""
    rules = {
        "namespace": f"doctor-{uuid.uuid4().hex[:12]}",
        "store_timeout": policy.store_timeout,
        "allow_eviction": True,
        "budgets": [{"scope": "global", "limit": "$1", "window": "fixed:60s"}],
    }
    call = Call(model="any", amount=1)
    with BudgetEngine.open(url, rules) as engine:
        before = time.perf_counter()
        for _ in range(_ROUNDS):
            held = engine.reserve(call)
            refused = engine.check(call).refusal
            engine.release(held)
        each_ms = (time.perf_counter() - before) * 1000 / _ROUNDS / 3
    if refused is None:
        return Result("balances", "failed", "a second hold was let in above the limit")
    return Result("balances", "ok", f"held, refused above the limit, released; {each_ms:.2f} ms for each")


def _server(url: str, policy: Policy) -> Iterator[Result]:
    from llm_budget_hooks.cli.servers import Server

    with Server(url, policy) as server:
        skew, name, version = server.skew_s(), server.name, server.version
    known = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    verdict: Verdict = "left out" if not known else "ok" if known >= _OLDEST else "failed"
    yield Result("server", verdict, f"{name}; 6.2 or newer is needed")
    text = f"the store's clock is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    yield Result("clock", "ok" if abs(skew) <= _SKEW_S else "warning", f"{text}; the store's decides")
