"""LiteLLM's price list, read from the file inside the installed distribution without importing litellm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

Entry = Mapping[str, Any]

_FILE = "litellm/model_prices_and_context_window_backup.json"
_NO_MODELS = ("sample_spec", "fallback_generalizations")


@cache
def entries() -> Mapping[str, Entry]:
    """All models of the list by name, read once per process; empty where litellm is not installed.

    Numbers are ints or `Decimal`, so that they are what the file says.
    """
    try:
        path = Path(str(distribution("litellm").locate_file(_FILE)))
        listed: dict[str, Entry] = json.loads(path.read_bytes(), parse_float=Decimal)
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return {name: entry for name, entry in listed.items() if name not in _NO_MODELS and isinstance(entry, dict)}


@cache
def _names_by_lower_case() -> Mapping[str, str]:
    return {name.lower(): name for name in entries()}


def find(name: str) -> tuple[str, Entry] | None:
    """The listed name and entry of a model, whatever the case of its letters, or None.

    An entry that only points to another one is followed, so ``claude-opus-latest`` is found as what it is today.
    """
    listed = entries()
    key = name if name in listed else _names_by_lower_case().get(name.lower(), "")
    entry = listed.get(key)
    if entry is None:
        return None
    target = entry.get("alias_of")
    if isinstance(target, str) and target in listed:
        return target, listed[target]
    return key, entry
