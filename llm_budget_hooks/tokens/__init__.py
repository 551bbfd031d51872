"""How many tokens a prompt can have, and about how many a text has: without a network, a framework or a wait.

`input_bound` is a bound: it is never below what a provider counts. Where the model's tokenizer comes with an
installed package and was loaded (`warm`), a short prompt is counted; all else is its size in bytes, because every
token of every known vocabulary stands for at least one byte of its normalised text.
"""

from __future__ import annotations

from llm_budget_hooks.tokens.bounds import input_bound
from llm_budget_hooks.tokens.encodings import warm
from llm_budget_hooks.tokens.guesses import counted, likely, likely_output
from llm_budget_hooks.tokens.media import has_sound

__all__ = ["counted", "has_sound", "input_bound", "likely", "likely_output", "warm"]
