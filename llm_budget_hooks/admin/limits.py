"""Limits and durations as people write them, for all ways to override one."""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import TypeAdapter, ValidationError

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.models import instant
from llm_budget_hooks.models.policy import Duration
from llm_budget_hooks.money import MAX_EXACT, parse_limit

OFF = "off"


def _is_nothing(limit: str | int) -> bool:
    try:
        return parse_limit(limit) == 0
    except ValueError:
        return False  # what it is instead is said where the budget is known


def limit_of(written: str | int) -> str | int:
    """A limit as `BudgetEngine.override` takes it, from a text such as ``$5``, ``500`` or ``off``.

    Raises:
        ConfigurationError: it is 0, which would switch the budget off instead of stopping everybody.
    """
    if written == OFF:
        return 0
    text = str(written).strip()
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < len(str(MAX_EXACT)) else text
    if not text or _is_nothing(limit):
        raise ConfigurationError(
            f"{text or 'nothing'} is no limit: to switch a budget off, say {OFF}; to stop calls, use the kill switch"
        )
    return limit


def ends_at(engine: BudgetEngine, lasts: str) -> datetime:
    """When something ends that begins now and lasts as long as a text such as ``24h`` says.

    Raises:
        ConfigurationError: the text is no duration.
    """
    try:
        return instant(engine.now_ms()) + TypeAdapter[timedelta](Duration).validate_python(lasts)
    except ValidationError as error:
        raise ConfigurationError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
