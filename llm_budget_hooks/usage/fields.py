"""Reading what may be an object or a mapping, and counts that may be anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from math import ceil
from typing import Any, Final

from llm_budget_hooks.models.calls import MAX_TOKENS, Usage

_DIGITS: Final = 40
_FIELDLESS: Final = (str, bytes, int, float, Decimal, list, tuple, type(None))


def field(value: Any, name: str) -> Any:
    """A field of an object or a mapping; None if it is not there, or cannot be read."""
    if type(value) is dict:
        return value.get(name)
    if value is None:
        return None
    try:
        return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    except Exception:  # noqa: BLE001 - a property of somebody else's object can raise anything
        return None


def first(value: Any, *names: str) -> Any:
    """The first of some fields that is there and not None."""
    if value is None:
        return None
    if type(value) is dict:
        for name in names:
            found = value.get(name)
            if found is not None:
                return found
        return None
    for name in names:
        found = field(value, name)
        if found is not None:
            return found
    return None


def items(value: Any) -> Sequence[Any]:
    """A list as it is, and nothing for what is no list."""
    return value if isinstance(value, list | tuple) else ()


class Counts:
    """Reads counts, and remembers whether one of them was not what a count can be.

    Attributes:
        exact: False once a count had to be changed.
    """

    __slots__ = ("_partial", "exact")

    def __init__(self, *, partial: bool = False) -> None:
        """Begin to read; in an event of a stream, counts may be missing."""
        self.exact = True
        self._partial = partial

    def of(self, place: Any, *names: str) -> int:
        """The first of some counts that is there; 0 without one."""
        if not place:
            return 0
        if type(place) is dict:
            for name in names:
                found = place.get(name)
                if found is not None:
                    return found if type(found) is int and 0 <= found <= MAX_TOKENS else self._forced(found)
            return 0
        if isinstance(place, _FIELDLESS):
            self.exact = False
        return self.whole(first(place, *names))

    def needed(self, place: Any, *names: str, may_lack: bool = False) -> int:
        """Same as `of`, for a count that a usage of this shape has: None in its place is not 0."""
        found = first(place, *names)
        if found is None and not self._partial and not (may_lack and not any(_has(place, name) for name in names)):
            self.exact = False
        return self.whole(found)

    def whole(self, value: Any) -> int:
        """A value as a count from 0 to 10**12; None is 0."""
        if value is None:
            return 0
        if type(value) is int and 0 <= value <= MAX_TOKENS:
            return value
        return self._forced(value)

    def listed(self, value: Any) -> Sequence[Any]:
        """A list of details; nothing for what is no list, and of it only what has fields."""
        found = [item for item in items(value) if not isinstance(item, _FIELDLESS)]
        if value and (not isinstance(value, list | tuple) or len(found) < len(value)):
            self.exact = False
        return found

    def _forced(self, value: Any) -> int:
        number = _number(value)
        if number is None or number < 0:
            self.exact = False
            return 0
        if isinstance(value, str) or number != int(number) or number > MAX_TOKENS:
            self.exact = False
        return min(ceil(number), MAX_TOKENS)


def _has(place: Any, name: str) -> bool:
    try:
        return name in place if isinstance(place, Mapping) else hasattr(place, name)
    except Exception:  # noqa: BLE001 - it is there, and cannot be read
        return True


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    if isinstance(value, int):
        return Decimal(value)
    text = str(value).strip()
    if len(text) > _DIGITS:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() and number.adjusted() <= _DIGITS else None


def made(counts: Counts, tier: Any = None, **found: int) -> Usage | None:
    """The usage of some counts; None if it says nothing but zeros.

    Args:
        counts: what read them.
        tier: the service tier that served, if it is text.
        found: the counts by the names of `Usage`.
    """
    if not any(found.values()):
        return None
    if max(found.values()) > MAX_TOKENS:
        found = {name: counts.whole(count) for name, count in found.items()}
    return Usage(**found, service_tier=tier_of(tier), exact=counts.exact)


def tier_of(*named: Any) -> str | None:
    """The first of some service tiers that is one; ``auto`` only says that the provider may choose."""
    for tier in named:
        if isinstance(tier, str) and tier.strip() and tier != "auto":
            return tier
    return None
