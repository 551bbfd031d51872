"""From the end of a model run to a `Usage`: what was reported, or what can be counted of the words that came."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.outputs import Generation, LLMResult

from llm_budget_hooks.langchain.tokens import likely_output
from llm_budget_hooks.models import Usage
from llm_budget_hooks.usage import usage_from


@dataclass(slots=True)
class Outcome:
    """What the end of a run says.

    Attributes:
        usage: as reported; None if nothing was.
        cached: LangChain's own response cache answered; nothing was billed.
        model: the model that served, if it says so.
        output_tokens: as reported, else about how many tokens the words are that arrived.
        deployment: the one of a LiteLLM Router that served, by its id.
    """

    usage: Usage | None = None
    cached: bool = False
    model: str | None = None
    output_tokens: int = 0
    deployment: str | None = None


def outcome_of(result: LLMResult | None, *, alone: bool = True) -> Outcome:
    """Read the result of a run, whole or partial.

    Args:
        result: what LangChain says; None where it says nothing.
        alone: False if the request to LangChain had other prompts, whose usage may stand on the first of them.
    """
    first = result.generations[0] if result is not None and result.generations else []
    if not first or result is None:
        return Outcome()
    message = getattr(first[0], "message", None)
    if message is None:
        return _text_outcome(first, result.llm_output or {}, alone)
    facts = message.response_metadata
    metadata: Mapping[str, Any] = getattr(message, "usage_metadata", None) or {}
    usage = usage_of(metadata, facts)
    if usage is not None and not usage.output_tokens and not usage.input_tokens:
        usage = None
    model = facts.get("model_name") or facts.get("model")
    arrived = likely_output(_words(first)) if usage is None else usage.output_tokens
    return Outcome(usage, metadata.get("total_cost") == 0, _text(model), arrived, _text(facts.get("model_id")))


def usage_of(metadata: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> Usage | None:
    """A `Usage` from ``usage_metadata``, None if it has no counts.

    Args:
        metadata: counts as LangChain gives them.
        facts: ``response_metadata``, for the service tier and the searches.
    """
    if "input_tokens" not in metadata and "output_tokens" not in metadata:
        return None
    return usage_from({"usage_metadata": metadata, "response_metadata": facts}) or Usage()


def _text_outcome(first: list[Any], output: Mapping[str, Any], alone: bool) -> Outcome:
    counts = output.get("token_usage")
    usage = None
    if counts:
        usage = usage_from(counts)
    elif counts is not None and not alone:
        usage = Usage()
    return Outcome(usage, False, _text(output.get("model_name")), likely_output(_words(first)))


def _words(generations: list[Generation]) -> Iterator[str]:
    for generation in generations:
        yield generation.text
        message = getattr(generation, "message", None)
        for name in ("tool_calls", "invalid_tool_calls"):
            for call in getattr(message, name, None) or ():
                yield json.dumps(call, default=str)
        if message is not None:
            yield str(message.additional_kwargs.get("reasoning_content") or "")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
