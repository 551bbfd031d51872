"""What the state machine needs of a store in Python: its records, within one atomic step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from llm_budget_hooks.transitions.commands import Hold
from llm_budget_hooks.transitions.rolling import Entry


class Cells(Protocol):
    """The records of one namespace, within one atomic step.

    A cell is a list ``[spent, reserved, start_ms]`` (an account), ``[start_ms, last_ms, calls, hits]`` (an
    utterance), a `rolling.Log`, or a `records.History`. A loaded cell may be changed in place, and is then saved.
    `until_ms` says when a cell may be forgotten; no decision depends on whether it was.
    """

    def load(self, keys: Sequence[str]) -> list[Any]:
        """The cells under these keys, None where there is none; an empty key has none."""

    def save(self, key: str, cell: Any, until_ms: int) -> None:
        """Store a cell."""

    def change(self, key: str, cell: Any) -> None:
        """Store a cell that is there already, and is kept as long as before."""

    def append(self, key: str, entry: tuple[int, int, int], until_ms: int) -> None:
        """Add an entry of a rolling account: its instant, its serial number, its amount."""

    def drop(self, key: str, at_ms: int) -> tuple[int, int, int]:
        """Remove the entries up to an instant; their sum, their number, and the instant of the first that is left."""

    def entries(self, key: str) -> Iterable[Entry]:
        """The entries of a rolling account by their instant."""

    def hold(self, id: str) -> Hold | None:
        """The hold, open or ended."""

    def save_hold(self, id: str, hold: Hold) -> None:
        """Store a hold; an ended one may be forgotten after its `kept_until_ms`."""

    def enter(self, id: str, scopes: Sequence[str], deadline_ms: int) -> None:
        """Put an open hold into the indexes of these scopes."""

    def leave(self, id: str, scopes: Sequence[str], deadline_ms: int) -> None:
        """Take a hold out of the indexes of these scopes."""

    def first(self, scope: str, limit: int) -> list[tuple[int, str]]:
        """Deadline and id of the first open holds of a scope, by deadline, then id."""

    def due_at(self) -> int:
        """The deadline of the first open hold, or a time that never comes."""

    def expired(self, id: str, until_ms: int) -> None:
        """List an expired hold as an orphan; 0 takes it off the list."""

    def orphans(self, now_ms: int, limit: int) -> list[str]:
        """The ids of orphans that are still remembered."""

    def revision(self) -> int:
        """How often the settings were changed; may be asked before `load`."""

    def settings(self) -> dict[str, str]:
        """The settings by name."""

    def change_settings(self, revision: int, changes: Sequence[tuple[str, str | None]]) -> None:
        """Write settings and their number; None takes one away. They are kept for ever."""

    def post(self, entry: tuple[str, str, str, int, str, str], most: int) -> None:
        """Append kind, id, was, at_ms, facts and actual to the outbox, or count it as dropped if that is full."""

    def acknowledge(self, number: str) -> None:
        """Take the entries up to a number out of the outbox."""

    def posted(self, limit: int) -> list[tuple[str, tuple[str, str, str, int, str, str]]]:
        """Number and entry of the first entries of the outbox."""

    def dropped(self) -> int:
        """How many entries were dropped for want of room."""

    def lease(self) -> tuple[str, int]:
        """Who drains the outbox and until when; empty if nobody does."""

    def save_lease(self, owner: str, until_ms: int) -> None:
        """Let somebody drain the outbox."""
