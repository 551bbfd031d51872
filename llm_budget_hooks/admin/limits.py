"""Limits as people write them, for all ways to override one."""

from __future__ import annotations

from llm_budget_hooks.errors import ConfigurationError
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
