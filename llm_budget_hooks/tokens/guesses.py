"""About how many tokens a text has, for answers whose provider has not said it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from llm_budget_hooks.tokens.encodings import any_loaded, loaded

_LONG: Final = 100_000


def counted(text: str, model: str = "") -> int:
    """About how many tokens a text has: counted where a tokenizer was loaded and it is short, else guessed.

    Args:
        text: the text.
        model: whose tokenizer to prefer.
    """
    encoding = loaded(model) or any_loaded()
    if encoding is None or len(text) > _LONG:
        return likely_output((text,))
    return len(encoding.encode_ordinary(text))


def likely(size: int) -> int:
    """About how many tokens a text of so many bytes is, rather too many than too few for prose and code."""
    return -(-size // 3)


def likely_output(texts: Iterable[str]) -> int:
    """About how many tokens a model's words are: a third of the bytes, and no fewer than there are words."""
    return sum(max(likely(_bytes(text)), len(text.split())) for text in texts)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
