"""What came of a request that the proxy passed through as it was."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from llm_budget_hooks.litellm.streams import _delivered, _events, _larger, _nested_usage
from llm_budget_hooks.litellm.tokens import counted
from llm_budget_hooks.litellm.usage import field, usage_of
from llm_budget_hooks.models import Call, Usage


def passed_usage(kwargs: Mapping[str, Any], response: Any, call: Call) -> Usage | None:
    """What the provider says was used, else what its stream delivered; None if neither can be told.

    LiteLLM reads the answers of some hosts only, and gives those of others as they came.

    Args:
        kwargs: of LiteLLM's event.
        response: of the same event.
        call: what was asked.
    """
    found = usage_of(response)
    if found is not None:
        return found
    body = field(kwargs.get("passthrough_logging_payload"), "response_body")
    text = field(response, "response")
    events = [body] if isinstance(body, Mapping) else _read(text) if isinstance(text, str) else []
    for event in events:
        usage = usage_of(event) or _nested_usage(event)
        if usage is not None:
            found = usage if found is None else _larger(found, usage)
    delivered = "".join(piece for event in events for piece in _delivered(event))
    if found is None and delivered:
        return Usage(input_tokens=call.input_tokens or 0, output_tokens=counted(delivered), exact=False)
    return found


def _read(text: str) -> list[Any]:
    """The events of an answer: one where it is JSON; LiteLLM gives a stream that it cannot read as a list in Python."""
    try:
        whole = json.loads(text)
    except ValueError:
        lines = text.partition("Chunks=")[2]
        try:
            return _events("\n".join(ast.literal_eval(lines)) if lines else text)
        except (ValueError, SyntaxError, TypeError):
            return _events(text)
    return whole if isinstance(whole, list) else [whole]
