"""Tokens counted without a tokenizer and without a network: a bound before the call, a guess after it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

_PER_MESSAGE = 16
_PER_REQUEST = 32
_PER_TOOL = 32
_TOOL_PROMPT = 600
"""What a provider adds to explain tools to the model; the largest known is Anthropic's, 346 to 530 tokens."""
_IMAGE = 6_000
_IMAGE_4O_MINI = 50_000
"""The largest image of gpt-4o-mini is 2833 + 8 tiles of 5667 tokens; other models stay below 5,000."""
_IMAGES = frozenset({"image", "image_url", "input_image"})
_UNCOUNTED = frozenset({"file", "input_file", "audio", "input_audio", "video", "document", "media"})
_DECLARED = ("tools", "functions", "response_format", "text", "output_config", "prediction", "system", "instructions")


class _Uncountable(Exception):
    """The size of a part cannot be told from the request."""


def input_bound(inputs: Iterable[BaseMessage] | Iterable[str], params: Mapping[str, Any], model: str) -> int | None:
    """At least as many tokens as the provider will count for the prompt; None if nothing here bounds it.

    A token of every known vocabulary stands for at least one byte of UTF-8, so the bytes of the texts are a bound;
    to it come the marks around messages and the declarations of tools, as the bytes of their JSON. An image
    counts as the largest that the model takes; files, sound and video have no bound. What a provider's own
    tools (a web search, say) add to the prompt on its side is not in it.

    Args:
        inputs: the messages of a chat, or the prompts of a text model.
        params: the invocation parameters.
        model: the model's name.
    """
    image = _IMAGE_4O_MINI if "4o-mini" in model else _IMAGE
    try:
        total = _PER_REQUEST
        for each in inputs:
            total += _PER_MESSAGE + (_bytes(each) if isinstance(each, str) else _message(each, image))
        return total + _declared(params)
    except _Uncountable:
        return None


def likely(size: int) -> int:
    """About how many tokens a text of so many bytes is, rather too many than too few for prose and code."""
    return -(-size // 3)


def likely_output(texts: Iterable[str]) -> int:
    """About how many tokens a model's words are: a third of the bytes, and no fewer than there are words."""
    return sum(max(likely(_bytes(text)), len(text.split())) for text in texts)


def has_cache_marks(messages: Iterable[Any]) -> bool:
    """Whether a message asks the provider to cache the prompt up to it."""
    return any(
        isinstance(part, dict) and "cache_control" in part
        for message in messages
        if isinstance(message, BaseMessage) and isinstance(message.content, list)
        for part in message.content
    )


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _json(value: object) -> int:
    return _bytes(json.dumps(value, default=str))


def _message(message: BaseMessage, image: int) -> int:
    total = _content(message.content, image)
    if message.name:
        total += _bytes(message.name)
    if message.additional_kwargs:
        total += _json(message.additional_kwargs)
    if isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls):
        total += _json(message.tool_calls) + _json(message.invalid_tool_calls)
    elif isinstance(message, ToolMessage):
        total += _json(message.tool_call_id)
    return total


def _content(content: object, image: int) -> int:
    if isinstance(content, str):
        return _bytes(content)
    if isinstance(content, Sequence):
        return sum(_PER_MESSAGE + _content(part, image) for part in content)
    if not isinstance(content, dict):
        return _json(content)
    kind = content.get("type")
    if kind in _IMAGES:
        return image
    if kind in _UNCOUNTED:
        raise _Uncountable
    if isinstance(content.get("content"), list):
        return _json({k: v for k, v in content.items() if k != "content"}) + _content(content["content"], image)
    return _json(content)


def _declared(params: Mapping[str, Any]) -> int:
    total = 0
    for name in _DECLARED:
        value = params.get(name)
        if value:
            total += _json(value)
    for name in ("tools", "functions"):
        if params.get(name):
            total += _TOOL_PROMPT + _PER_TOOL * len(params[name])
    return total
