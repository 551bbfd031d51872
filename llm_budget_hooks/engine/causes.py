"""What an error was raised from, as far as that happened inside the call that failed with it.

Python hangs whatever was being handled to a new error as its context. Where a call is made in an ``except`` block,
that is what the caller was handling, which says nothing about the call.
"""

from __future__ import annotations

import itertools
import sys
from contextlib import suppress
from typing import Final

_NUMBERS: Final = itertools.count()
_HANDLED_BY: Final = "_llm_budget_handled"
_DEPTH: Final = 12


def begun() -> int:
    """Number the call that begins here, after all that began before it."""
    number = next(_NUMBERS)
    handled = sys.exception()
    if handled is not None and not hasattr(handled, _HANDLED_BY):
        # On the error, and not with the call: a call that keeps an error keeps all frames that it went through.
        with suppress(AttributeError, TypeError):
            setattr(handled, _HANDLED_BY, number)
    return number


def causes(error: BaseException, number: int) -> list[BaseException]:
    """The error and what it was raised from, down to what was being handled already when its call began.

    Args:
        error: what the call failed with.
        number: what `begun` gave the call.
    """
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found and len(found) < _DEPTH:
        if found and getattr(following, _HANDLED_BY, number + 1) <= number:
            break
        found.append(following)
        following = following.__cause__ or following.__context__
    return found
