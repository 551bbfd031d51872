"""The engine that a command is about: from its options, or from the environment."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import typer

from llm_budget_hooks.config import DEFAULT_STORE, policy_from_env
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import BudgetError, ConfigurationError, PriceUnknown, StoreUnavailable
from llm_budget_hooks.models import Policy
from llm_budget_hooks.stores.sqlite import path_of

FINDING = 1
WRONG_USE = 2
_NO_LEDGER = "Which ledger? Name it with --ledger, or set LLM_BUDGET_LEDGER."
_MISSING = "There is no ledger at {}: no call was written to it yet, or it is elsewhere."
_log = logging.getLogger("llm_budget_hooks")


@contextmanager
def mistakes_told() -> Iterator[None]:
    """Errors of this package as one text on stderr, without a traceback: exit code 2 for wrong use, else 1."""
    try:
        yield
    except BudgetError as error:
        typer.echo(str(error), err=True)
        wrong_use = isinstance(error, (ConfigurationError, PriceUnknown))
        raise typer.Exit(WRONG_USE if wrong_use else FINDING) from None


def engine_of(
    store: str | None, policy: Path | None, preset: str | None, ledger: str | None = None, *, changing: bool = False
) -> BudgetEngine:
    """The engine that the options name; what they leave out comes from the environment.

    A file that is not there is not made: a mistyped path would show balances that nobody spends from, or stop nobody.

    Args:
        store, policy, preset, ledger: the options.
        changing: whether something is to be changed, which takes a store that calls use.

    Raises:
        ConfigurationError: there is no policy or no store, or something in the policy or the URLs is wrong.
    """
    rules = policy_of(policy, preset).model_copy(update={"webhook": None})  # its secret is the service's
    url, trail = store_of(store), ledger_url(ledger)
    if changing and url == "memory://":
        raise ConfigurationError("memory:// ends with this command: name the store that calls use with --store.")
    check_store(url)
    if trail is not None and (missing := missing_ledger(trail)):
        if not changing:
            raise ConfigurationError(_MISSING.format(missing))
        typer.echo(f"There was no ledger at {missing}; it is made now.", err=True)
    return BudgetEngine.from_env(store=store, policy=rules, ledger=ledger)


def store_of(url: str | None) -> str:
    """The URL that an option names, or the environment, or else a file in this folder."""
    return url or os.environ.get("LLM_BUDGET_STORE") or DEFAULT_STORE


def check_store(url: str) -> None:
    """See that the file of an SQLite store is there.

    Raises:
        ConfigurationError: it is not.
    """
    if url.startswith("sqlite:") and not (path := path_of(url)).exists():
        raise ConfigurationError(
            f"There is no store at {path.absolute()}: no call was made with it yet. "
            "If there were calls, name their store with --store, or set LLM_BUDGET_STORE."
        )


def ledger_url(url: str | None) -> str | None:
    """The URL that an option names, or the environment; None if there is no ledger."""
    return url or os.environ.get("LLM_BUDGET_LEDGER") or None


def policy_of(path: Path | None, preset: str | None) -> Policy:
    """The policy of a file, a preset, or the environment.

    Raises:
        ConfigurationError: both or none are given, or the policy is wrong.
    """
    if path is not None and preset is not None:
        raise ConfigurationError("Name a policy file or a preset, not both.")
    if preset is not None:
        return Policy.preset(preset)
    if path is None and not os.environ.get("LLM_BUDGET_POLICY"):
        raise ConfigurationError(
            "Which policy? Name a file, a --preset, or set LLM_BUDGET_POLICY. "
            "A file to start from: llm-budget check --preset zeno --print > budgets.toml"
        )
    return policy_from_env(path)


def rules_of(path: Path | None) -> Policy:
    """The policy of a file or the environment, for its prices and aliases; without both, one without rules."""
    return Policy() if path is None and not os.environ.get("LLM_BUDGET_POLICY") else policy_of(path, None)


def ledger_of(url: str | None) -> Any:
    """The ledger that an option names, or LLM_BUDGET_LEDGER; a file that is not there is not made.

    Raises:
        ConfigurationError: there is none, or the URL names none.
    """
    from llm_budget_hooks.ledger import Ledger

    found = ledger_url(url)
    if not found:
        raise ConfigurationError(_NO_LEDGER)
    ledger = Ledger.open(found)
    if missing := missing_ledger(found):
        raise ConfigurationError(_MISSING.format(missing))
    return ledger


def missing_ledger(url: str) -> Path | None:
    """The file of a ledger on SQLite, if it is not there."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        named = make_url(url)
    except ArgumentError:
        return None  # whoever opens it says so
    path = Path(named.database or "").absolute()
    return path if named.get_backend_name() == "sqlite" and not path.exists() else None


@contextmanager
def trail_of(store: str | None, policy: Path | None, preset: str | None, ledger: str | None) -> Iterator[Any]:
    """The ledger to read. With a policy, what its store still has for the ledger is brought there first.

    Raises:
        ConfigurationError: there is no ledger, or something in the policy or the URLs is wrong.
    """
    if _ledger_alone(store, policy, preset):
        with closing(ledger_of(ledger)) as kept:
            yield kept
        return
    with engine_of(store, policy, preset, ledger) as engine:
        if engine.ledger is None:
            raise ConfigurationError(_NO_LEDGER)
        try:
            engine.flush()
        except StoreUnavailable as error:
            _log.warning("What is not in the ledger yet is not shown: %s", error)
        yield engine.ledger


def _ledger_alone(store: str | None, policy: Path | None, preset: str | None) -> bool:
    """Whether there is nothing that a store could add: no policy is named, or nobody has used the store yet."""
    if policy is None and preset is None and not os.environ.get("LLM_BUDGET_POLICY"):
        return True
    try:
        check_store(store_of(store))
    except ConfigurationError as error:
        _log.warning("What is not in the ledger yet is not shown. %s", error)
        return True
    return False


def print_json(values: Any) -> None:
    """Print one line of JSON."""
    typer.echo(json.dumps(values, ensure_ascii=False))


def say(text: str) -> None:
    """Print a sentence, without what a terminal would take for a command."""
    typer.echo(printable(text))


def printable(text: str) -> str:
    """A text that somebody else chose, with U+FFFD in the place of what a terminal would act on."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
