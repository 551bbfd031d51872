"""Money as integer nano-dollars ("nusd"), read from and shown as exact dollars.

Nothing here is ever a float: a float that arrives is refused, because its digits are not what was written.
Fractions of a nano-dollar are rounded up, so that no cost is booked below what was said.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Context, Decimal
from typing import Final

NUSD: Final = 10**9
"""One dollar in nano-dollars."""

MAX_LIMIT_NUSD: Final = 9_000_000 * NUSD
"""The largest limit of one account."""

MAX_CALL_NUSD: Final = 100_000 * NUSD
"""The largest amount of one call."""

MAX_EXACT: Final = 2**53
"""Up to here every store counts exactly; sums beyond it deny."""

_ACCEPTED: Final = 'dollars as "$50", "50", "5¢", an int or a Decimal'
_NUMBER: Final = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?"
_TEXT: Final = re.compile(rf"([+-]?)(\$?)([+-]?)({_NUMBER})(¢?)")
_CEILING: Final = Context(prec=100, rounding=ROUND_CEILING, traps=[])
_ONE: Final = Decimal(1)
_MAX_DIGITS: Final = 40
_DIGITS_WRITTEN: Final = 200


def parse_nusd(value: object) -> int:
    """The nano-dollars of an amount that is zero or more.

    Args:
        value: dollars as ``"$50"``, ``"50"``, ``"5¢"``, an int or a Decimal. What is finer than a
            nano-dollar is rounded up.

    Returns:
        nano-dollars.

    Raises:
        ValueError: for a float, a bool, a negative or infinite amount, NaN, and all that is no amount.
    """
    nusd = _signed_nusd(value)
    if nusd < 0 or (nusd == 0 and _is_negative(value)):
        raise ValueError(f"{_shown(value)} is negative; an amount is {_ACCEPTED}, zero or more")
    return nusd


def parse_limit(value: object) -> int:
    """Same as `parse_nusd`, for the limit of an account: at most `MAX_LIMIT_NUSD`."""
    return _at_most(MAX_LIMIT_NUSD, parse_nusd(value), "a limit")


def parse_amount(value: object) -> int:
    """Same as `parse_nusd`, for what one call costs: at most `MAX_CALL_NUSD`."""
    return _at_most(MAX_CALL_NUSD, parse_nusd(value), "an amount of one call")


def parse_correction(value: object) -> int:
    """Same as `parse_nusd`, for a correction: ``"-0.40"`` and ``"-$0.40"`` give money back.

    A correction is at most `MAX_LIMIT_NUSD` either way. Fractions are rounded towards more spend.
    """
    nusd = _signed_nusd(value)
    _at_most(MAX_LIMIT_NUSD, abs(nusd), "a correction")
    return nusd


def to_decimal(nusd: int) -> Decimal:
    """The exact dollars of an amount of nano-dollars, without trailing zeros."""
    return Decimal(_plain(nusd))


def plain(amount: Decimal) -> str:
    """The digits of exact dollars, never with an exponent: what JSON and pages are given."""
    return f"{amount:f}"


def format_usd(nusd: int) -> str:
    """An amount of nano-dollars for people: ``$2.00``, ``$0.0031``, ``-$0.40``."""
    whole, _, fraction = _plain(abs(nusd)).partition(".")
    return f"{'-' if nusd < 0 else ''}${whole}.{fraction:0<2}"


def _plain(nusd: int) -> str:
    whole, fraction = divmod(abs(nusd), NUSD)
    text = f"{'-' if nusd < 0 else ''}{whole}.{fraction:09d}"
    return text.rstrip("0").removesuffix(".")


def _signed_nusd(value: object) -> int:
    dollars = _dollars(value)
    if not dollars.is_finite():
        raise ValueError(f"{_shown(value)} is no finite amount; accepted: {_ACCEPTED}")
    if dollars and dollars.adjusted() > _MAX_DIGITS:
        raise ValueError(f"{_shown(value)} is too large for an amount in dollars")
    return int(dollars.scaleb(9, _CEILING).quantize(_ONE, context=_CEILING))


def _dollars(value: object) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    if isinstance(value, str):
        return _written(value)
    hint = f'; write it as text, "{value!r}"' if isinstance(value, float) else ""
    raise ValueError(f"{_shown(value)} ({type(value).__name__}) is no amount; accepted: {_ACCEPTED}{hint}")


def _written(text: str) -> Decimal:
    match = _TEXT.fullmatch(text.strip()) if len(text) <= _DIGITS_WRITTEN else None
    if match is None or (match[1] and match[3]) or (match[2] and match[5]):
        raise ValueError(f"{_shown(text)} is no amount; accepted: {_ACCEPTED}")
    dollars = Decimal(f"{match[1]}{match[3]}{match[4]}")
    return dollars.scaleb(-2, _CEILING) if match[5] else dollars


def _is_negative(value: object) -> bool:
    dollars = _dollars(value)
    return bool(dollars) and dollars.is_signed()


def _at_most(most: int, nusd: int, what: str) -> int:
    if nusd > most:
        raise ValueError(f"{format_usd(nusd)} is too large: {what} is at most ${most // NUSD:,}")
    return nusd


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _DIGITS_WRITTEN:
        return f"an int of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
