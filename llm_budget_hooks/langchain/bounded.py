"""A dict that forgets what was not used for long, safe for threads."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(Generic[K, V]):
    """At most so many entries, in two generations; a look-up brings an entry into the younger one.

    When the younger one has half of the entries, it becomes the older one, and what was the older one is forgotten.
    So an entry survives as long as it is used once per half as many others; no operation waits for another thread.

    Args:
        size: the most entries.
    """

    def __init__(self, size: int) -> None:
        self._half = max(size // 2, 1)
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._ageing = threading.Lock()

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def __contains__(self, key: K) -> bool:
        return key in self._young or key in self._old

    def get(self, key: K) -> V | None:
        """The entry, or None."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: K, value: V) -> None:
        """Set an entry; those that were not used for long go if there are too many."""
        self._young[key] = value
        if len(self._young) >= self._half:
            self._age()

    def pop(self, key: K) -> V | None:
        """Take an entry out."""
        # The younger one first, here and above: ageing moves an entry from it, never into it.
        found = self._young.pop(key, None)
        older = self._old.pop(key, None)
        return found if found is not None else older

    def _age(self) -> None:
        with self._ageing:
            if len(self._young) >= self._half:
                self._old, self._young = self._young, {}
