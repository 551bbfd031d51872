"""A connection to PostgreSQL that is given up when the server stands still.

The server's own timeouts do not end a wait for a server that is stopped, and those of TCP do not either, as long as
its kernel acknowledges what is sent.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg


class PostgresConnection(psycopg.Connection[Any]):
    """Closes itself where an answer takes longer than `answer_s`.

    Attributes:
        answer_s: how long the server may take for one statement, in seconds.
    """

    answer_s = 60.0

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """See `psycopg.Connection.wait`, which asks again and again whether something has arrived."""
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        deadline = time.monotonic() + self.answer_s
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() >= deadline:
                    self.close()
                    raise psycopg.OperationalError(f"the server did not answer within {self.answer_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as stop:
            return stop.value
