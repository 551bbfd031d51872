"""From the answers that LiteLLM gives to a `Usage`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llm_budget_hooks.models import Usage
from llm_budget_hooks.usage import field, served_model, usage_from

__all__ = ["field", "read_usage", "served_model", "usage_of"]


def usage_of(response: Any) -> Usage | None:
    """What an answer says was used; None if it says nothing, nothing but zeros, or only brings images.

    Images alone have a price that LiteLLM knows better, by their size and quality.

    Args:
        response: an answer, or a final event, of any LiteLLM entry point.
    """
    found = usage_from(response, partial=True)
    if found is None or found.input_tokens or found.output_tokens:
        return found
    return None if found == Usage(images=found.images) else found


def read_usage(usage: Any, *, tier: Any = None, exact: bool = True) -> Usage | None:
    """Same as `usage_of`, for the usage itself.

    Args:
        usage: the usage.
        tier: the service tier that the answer beside it names.
        exact: False if the counts are known to be a guess.
    """
    found = usage_from({"usage": usage, "service_tier": tier}, partial=True)
    return found if found is None or exact else replace(found, exact=False)
