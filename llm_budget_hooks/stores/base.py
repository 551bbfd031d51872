"""The written contract of a store."""

from __future__ import annotations

from typing import Protocol

from llm_budget_hooks.transitions import Answer, Command


class Store(Protocol):
    """Carries out commands on the balances of one namespace.

    What an implementer must keep:

    * A command is one atomic step over all its accounts: every other command, of any thread or process that
      shares the store, comes wholly before or wholly after it.
    * The answer and the balances afterwards are those of `llm_budget_hooks.transitions.apply`.
    * The time is the store's own, one for all who share it, unless the command brings its own.
    * A refusal, an error and a bad argument change nothing.
    * What is answered is written: a process that dies after the answer loses nothing of it, as far as the
      store's medium keeps what it was given.
    * It raises nothing but `StoreUnavailable` when it cannot decide within its timeout, and nothing is then
      held that its own timeout would not end.
    * Threads may call `execute`, and tasks of any number of event loops `aexecute`, at the same time.
      Connections are made at the first use in each process and loop.

    Attributes:
        shared: whether other processes see the same balances.
        forgets: whether balances can be lost or set back while the store goes on; it then says so, and nothing else.
        kept_elsewhere: whether a ledger has what the store may lose, so that no balances are not simply new ones.
    """

    shared: bool
    forgets: bool
    kept_elsewhere: bool

    def execute(self, command: Command) -> Answer:
        """Carry out one command."""

    async def aexecute(self, command: Command) -> Answer:
        """Same as `execute`, awaited. It does not block the event loop for longer than it takes to compute."""

    def now_ms(self) -> int:
        """What the store's clock shows about now, without asking it; to plan with, never to decide with."""

    def probe(self) -> None:
        """Look once whether the store is fit to keep balances; one that is away is left for later.

        Raises:
            ConfigurationError: it is not.
        """

    def ask_again(self) -> None:
        """Ask the store with the next command even if it was away a moment ago."""

    def close(self) -> None:
        """Close the connections of this process. The balances stay."""

    async def aclose(self) -> None:
        """Same as `close`, awaited, for the connections of this event loop."""
