"""The most tokens that a text can have."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import tiktoken

EXACT_BYTES: Final = 40_000
"""Up to here a prompt is counted; the worst of so many bytes take under 20 ms."""

_GROW: Final = (
    (0xA8, 0x386), (0x587, 0x588), (0x675, 0x679), (0x958, 0xA5F), (0xB5C, 0xB5E), (0xE33, 0xFBA), (0x1FC1, 0x2058),
    (0x2150, 0x2231), (0x247D, 0x2488), (0x2A0C, 0x2ADD), (0x309B, 0x3400), (0xFA6C, 0xFEFD), (0x1D15E, 0x1D1C1),
    (0x1F12A, 0x1F12B), (0x1F200, 0x1F249),
)  # fmt: skip
"""Where in Unicode there are characters that take more bytes in the form NFKC."""


class Texts:
    """Bounds the texts of one prompt with the model's tokenizer, the first of them exactly."""

    __slots__ = ("_encoding", "_left")

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        """Begin a prompt.

        Args:
            encoding: the model's tokenizer.
        """
        self._encoding = encoding
        self._left = EXACT_BYTES

    def bound(self, text: str) -> int:
        """The most tokens that a text can have."""
        size = byte_bound(text)
        if size > self._left:
            return size
        self._left -= size
        return len(self._encoding.encode_ordinary(text))


def byte_bound(text: str) -> int:
    """The bytes of a text, as it is or in the form NFKC, into which some tokenizers put it first."""
    if text.isascii():
        return len(text)
    size = len(text.encode("utf-8", "surrogatepass"))
    if unicodedata.is_normalized("NFKC", text):
        return size
    more, pattern = _growth()
    return size + sum(more[character] for character in pattern.findall(text))


@cache
def _growth() -> tuple[dict[str, int], re.Pattern[str]]:
    """The characters that take more bytes in the form NFKC, with how many more, and a pattern that finds them."""
    more = {}
    for first, end in _GROW:
        for code in range(first, end):
            character = chr(code)
            grown = len(unicodedata.normalize("NFKC", character).encode()) - len(character.encode())
            if grown > 0:
                more[character] = grown
    return more, re.compile(f"[{re.escape(''.join(more))}]")
