"""The provider's books, whatever form they have: `Books` give `Billed` lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Protocol

from llm_budget_hooks.errors import BudgetError


class BooksUnavailable(BudgetError, ConnectionError):
    """The provider's books could not be read. Nothing was compared and nothing was booked."""


@dataclass(frozen=True, slots=True)
class Billed:
    """One line of a provider's books: something that a model was billed, or has used, on a day.

    Several lines of one model and day add up, so a line of money and a line of tokens may be apart.

    Attributes:
        day: the day in UTC.
        model: the model as the provider names it; the name of the tool where `tool` is True.
        cost: dollars; None: the line is about use alone.
        requests: how many calls; None where the books do not say.
        input_tokens: all of the prompt, cached parts included; None where the books do not say.
        cached_input_tokens: the part of it read from a cache.
        output_tokens: what was generated.
        batch: whether it was served in a batch.
        tool: what was billed is the use of a tool, such as ``web search``, whichever model used it.
        partial: other calls of this model may be in no line of these books, such as those that go past a proxy, so
            that what the ledger has more is never taken back by them.
    """

    day: date
    model: str
    cost: Decimal | None = None
    requests: int | None = None
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    batch: bool = False
    tool: bool = False
    partial: bool = False


class Books(Protocol):
    """Somebody's books.

    Attributes:
        provider: LiteLLM's name of the provider whose models alone they are about; None: of any.
    """

    provider: str | None

    def lines(self, since: date, until: date) -> Iterable[Billed]:
        """What was billed from one UTC day to before another.

        Raises:
            BooksUnavailable: they could not be read.
        """
