"""Counting what a LiteLLM request sends and what a stream delivered, with the tokenizers that LiteLLM brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llm_budget_hooks import tokens

__all__ = ["counted", "input_bound", "warm"]

_PROMPTS: Final = ("messages", "contents", "system", "instructions", "prompt", "input", "query", "documents")


def input_bound(model: str, asked: Mapping[str, Any]) -> int | None:
    """The most tokens that the prompt of a request can have; None where that cannot be told, as with files.

    Args:
        model: the model's name.
        asked: the request's parameters by name.
    """
    warm()
    prompt: list[Any] = []
    for name in _PROMPTS:
        value = asked.get(name)
        if not value:
            continue
        if isinstance(value, (list, tuple)) and not isinstance(value[0], int):
            prompt.extend(value)
        else:
            prompt.append(value)
    return tokens.input_bound(model, prompt, asked, audio=True)


def counted(text: str) -> int:
    """About how many tokens a text has."""
    warm()
    return tokens.counted(text)


def warm() -> None:
    """Load the tokenizer of the usual models, so that no call waits for it."""
    tokens.warm()
