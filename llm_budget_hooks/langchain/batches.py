"""The prompts of one `generate`: LangChain starts them one by one, asks for all, and forgets some when one fails."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_budget_hooks.langchain.opened import Opened


class Batch:
    """The calls of one `generate` so far.

    Attributes:
        size: how many prompts there are.
        calls: those that were let in.
    """

    __slots__ = ("calls", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.calls: list[Opened] = []


_STARTING: ContextVar[Batch | None] = ContextVar("llm_budget_hooks_langchain_batch", default=None)


def join_batch(opened: Opened, size: int) -> Batch:
    """Put a call into the batch that is being started here."""
    batch = _STARTING.get()
    if batch is None or batch.size != size:
        batch = Batch(size)
    batch.calls.append(opened)
    _STARTING.set(None if len(batch.calls) == size else batch)
    return batch


def abandoned_batch() -> list[Opened]:
    """The calls that were let in before one of their batch was refused, so that none of them is made."""
    batch = _STARTING.get()
    _STARTING.set(None)
    return batch.calls if batch is not None else []
