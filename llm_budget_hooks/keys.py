"""Keys of what a store keeps: identities, holds and histories by digests that nobody can reach into. Pure."""

from __future__ import annotations

import itertools
import os
import unicodedata
from binascii import b2a_base64
from collections.abc import Callable
from functools import lru_cache, wraps
from hashlib import blake2b
from typing import Final

DEFAULT_TENANT: Final = "default"
LONGEST_KEPT: Final = 512
"""How many letters of ids and names a process remembers at most by each key that it has made of them."""

_KEPT: Final = 8192
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def digest(*parts: str) -> str:
    """Twenty letters that stand for a list of texts, whatever is in them; other lists have others."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    joined = b"".join([b"%d:%b" % (len(part), part) for part in encoded])
    return b2a_base64(blake2b(joined, digest_size=15).digest(), newline=False).translate(_URL_SAFE).decode()


def normalised(text: str | None) -> str:
    """An id as accounts know it: NFC, stripped; empty where there is none."""
    if text is None:
        return ""
    return text.strip() if text.isascii() else unicodedata.normalize("NFC", text).strip()


def tenant_name(text: str | None) -> str:
    """A tenant as accounts know it; ``default`` for calls that name none."""
    return normalised(text) or DEFAULT_TENANT


def identity(tenant: str, user: str) -> tuple[str, str]:
    """The keys of a tenant and of a user within it."""
    return _identity(tenant, user) if len(tenant) + len(user) <= LONGEST_KEPT else _hashed(tenant, user)


def _hashed(tenant: str, user: str) -> tuple[str, str]:
    return digest("t", tenant), digest("u", tenant, user)


_identity = lru_cache(maxsize=_KEPT)(_hashed)


def kept_if_short(made: Callable[..., str]) -> Callable[..., str]:
    """Remembers what a function has made of the last texts, unless they are so long that they would fill the memory."""
    kept = lru_cache(maxsize=_KEPT)(made)

    @wraps(made)
    def answer(*texts: str) -> str:
        return kept(*texts) if sum(map(len, texts)) <= LONGEST_KEPT else made(*texts)

    return answer


class _Ids:
    """Made-up ids: a random part per process, and a count."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._prefix = "r-" + os.urandom(8).hex()
        self._count = itertools.count()

    def next(self) -> str:
        return f"{self._prefix}{next(self._count):x}"


IDS = _Ids()
os.register_at_fork(after_in_child=IDS.renew)


def hold_key(id: str) -> str:
    """The key of a hold. Made-up ids are their own; all others are hashed, and cannot meet them."""
    if id.startswith("r-") and len(id) < 40 and id[2:].isalnum() and id.isascii():
        return id
    return "x" + digest("h", id)
