"""Reading what stands in books: days, models, amounts and counts, each of which may be anything.

What cannot be meant raises `Unreadable` with a sentence for people; nothing else is raised.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Final

_THOUSANDS: Final = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")
_COUNT: Final = re.compile(r"[0-9]{1,15}(?:\.0*)?")
_EPOCH: Final = re.compile(r"[0-9]{10}(?:[0-9]{3})?")
_MOST: Final = Decimal(10**12)
WEB_SEARCH: Final = "web search"
_TOOLS: Final = {WEB_SEARCH: WEB_SEARCH, "file search": "file search", "code interpreter": "code execution"}
_SHORTEST: Final = Decimal("1e-18")


class Unreadable(ValueError):
    """Something in books that cannot be what it stands for."""


def day_of(value: object) -> date:
    """The UTC day of an ISO date or instant, or of seconds or milliseconds since the epoch."""
    return instant_of(value).date()


def instant_of(value: object) -> datetime:
    """Same as `day_of`, for the instant itself."""
    text = _text(value)
    try:
        if _EPOCH.fullmatch(text):
            return datetime.fromtimestamp(int(text[:10]), UTC)
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise Unreadable(f"{_shown(value)} is no day or instant, such as 2026-11-30") from None


def begin_of(day: date) -> datetime:
    """The instant at which a UTC day begins."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def dollars(value: object) -> Decimal:
    """A finite amount of dollars, from the figure or text that books have it in."""
    text = _text(value).removeprefix("$")
    if "," in text and not _THOUSANDS.fullmatch(text):
        raise Unreadable(f"{_shown(value)} is no amount; a comma only parts thousands, as in 1,234.56")
    try:
        amount = Decimal(text.replace(",", ""))
    except InvalidOperation:
        raise Unreadable(f"{_shown(value)} is no amount of dollars") from None
    if not amount.is_finite() or abs(amount) > _MOST:
        raise Unreadable(f"{_shown(value)} is no amount of dollars")
    return amount if abs(amount) >= _SHORTEST else Decimal(0)


def check_currency(value: object) -> None:
    """Raise for an amount that is said to be in anything but dollars of the United States; empty: nothing is said."""
    if value not in (None, "") and _text(value).lower() not in ("", "usd", "us$", "$"):
        raise Unreadable(f"an amount in {_shown(value)} is none of dollars; nothing here knows the rate")


def count_of(value: object) -> int:
    """A whole number from 0 on."""
    text = _text(value)
    if not _COUNT.fullmatch(text):
        raise Unreadable(f"{_shown(value)} is no count")
    return int(text.partition(".")[0])


def model_of(value: object) -> str:
    """The name of a model."""
    return _text(value)


def model_of_item(value: object) -> str:
    """The model that a line item of OpenAI's costs is about, such as ``gpt-4o-2024-08-06, input``."""
    return model_of(value).partition(",")[0].strip()


def tool_of(value: object) -> str | None:
    """The tool whose use a line of a bill is about, such as OpenAI's ``web search tool calls``; None: a model's."""
    item = value.lower().replace("_", " ") if isinstance(value, str) else ""
    return next((tool for words, tool in _TOOLS.items() if words in item), None)


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise Unreadable(f"{_shown(value)} is neither text nor a number")
    if isinstance(value, int) and value.bit_length() > 256:
        raise Unreadable(f"{_shown(value)} is too large")
    return str(value).strip()


def _shown(value: object) -> str:
    if isinstance(value, str | float | Decimal):
        text = repr(str(value))
        return text if len(text) <= 60 else f"{text[:57]}..."
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= 256:
        return str(value)
    return f"a value of the type {type(value).__name__}"
