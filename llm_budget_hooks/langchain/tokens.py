"""Counting what a LangChain run sends: a bound before the call, a guess after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from llm_budget_hooks import tokens
from llm_budget_hooks.tokens import likely, likely_output

__all__ = ["has_cache_marks", "hears", "input_bound", "likely", "likely_output"]

_PROMPTS = ("system", "instructions")
_PLAIN = (HumanMessage, SystemMessage)
"""Asking whether a pydantic object is one of a class takes longer than all else about a message."""


def input_bound(inputs: Iterable[BaseMessage] | Iterable[str], params: Mapping[str, Any], model: str) -> int | None:
    """At least as many tokens as the provider will count for the prompt; None if nothing here bounds it.

    Args:
        inputs: the messages of a chat, or the prompts of a text model.
        params: the invocation parameters.
        model: the model's name.
    """
    prompt = [each if isinstance(each, str) else _sent(each) for each in inputs]
    prompt += [params[name] for name in _PROMPTS if params.get(name)]
    return tokens.input_bound(model, prompt, params, exact=False, audio=True)


def has_cache_marks(messages: Iterable[Any]) -> bool:
    """Whether a message asks the provider to cache the prompt up to it."""
    return any(
        isinstance(part, dict) and "cache_control" in part
        for message in messages
        if isinstance(message, BaseMessage) and isinstance(message.content, list)
        for part in message.content
    )


def hears(messages: Iterable[Any]) -> bool:
    """Whether a message has sound in it."""
    return tokens.has_sound(message.content for message in messages if isinstance(message, BaseMessage))


def _sent(message: BaseMessage) -> Any:
    """What a message sends; plain text as such, which is the usual case."""
    if type(message) in _PLAIN and not message.name and not message.additional_kwargs:
        return message.content
    more: dict[str, Any] = {}
    if message.name:
        more["name"] = message.name
    if message.additional_kwargs:
        more["additional_kwargs"] = message.additional_kwargs
    if isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls):
        more["tool_calls"] = message.tool_calls + message.invalid_tool_calls
    elif isinstance(message, ToolMessage):
        more["tool_call_id"] = message.tool_call_id
    return {"content": message.content, **more} if more else message.content
