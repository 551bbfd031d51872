"""Counting without the network: how large a prompt can be, and how much of an answer was delivered."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import litellm
import tiktoken

_log = logging.getLogger("llm_budget_hooks")
_EXACT_BYTES: Final = 64_000
_PER_MESSAGE: Final = 8
_PER_PROMPT: Final = 16
_O200K: Final = re.compile(r"(^|/)(ft:)?(gpt-4o|gpt-4\.1|gpt-4\.5|gpt-5|chatgpt-4o|o1|o3|o4)\b")
_TEXTS: Final = ("text", "content", "name", "arguments", "output", "refusal", "thinking", "input_text", "function")
_LARGE: Final = ("tools", "functions", "response_format", "text", "system", "instructions", "prompt", "input", "query")


def input_bound(model: str, asked: Mapping[str, Any]) -> int | None:
    """The most tokens that the prompt of a request can have; None where that cannot be told, as with images.

    The text of models whose tokenizer comes with LiteLLM is counted while it is short (64 kB take under 10 ms).
    All else is its size in bytes: no tokenizer makes more tokens than there are bytes.

    Args:
        model: the model's name.
        asked: the request's parameters by name.
    """
    try:
        return _input_bound(model, asked)
    except (TypeError, ValueError, AttributeError) as error:
        _log.warning("A prompt could not be measured, so its model's largest input is held: %s", type(error).__name__)
        return None


def counted(text: str) -> int:
    """About how many tokens a text has."""
    if len(text) > 1_000_000:
        return len(text.encode("utf-8", "replace")) // 3
    return len(_encoding("cl100k_base").encode_ordinary(text))


def warm() -> None:
    """Load the tokenizer of the usual models, so that no call waits for it."""
    _encoding("o200k_base").encode_ordinary("ready")


def _input_bound(model: str, asked: Mapping[str, Any]) -> int | None:
    messages = asked.get("messages") or ()
    total, uncounted = _PER_PROMPT + _PER_MESSAGE * len(messages), _EXACT_BYTES
    exact = _O200K.search(model) is not None
    for part in _parts([messages, *(asked[name] for name in _LARGE if asked.get(name))]):
        if part is None:
            return None
        if isinstance(part, int):
            total += part
            continue
        size = len(part) if part.isascii() else len(part.encode("utf-8", "surrogatepass"))
        uncounted -= size
        if exact and uncounted >= 0:
            size = len(_encoding("o200k_base").encode_ordinary(part))
        total += size
    return total


def _parts(value: Any) -> Iterator[str | int | None]:
    """All texts of a prompt, each token of one that is given as tokens, and None for what is no text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, (int, float)):
        yield 1
    elif isinstance(value, Mapping):
        yield from _of_object(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _parts(item)
    else:
        yield from _of_model(value)


def _of_object(value: Mapping[str, Any]) -> Iterator[str | int | None]:
    kind = str(value.get("type", ""))
    if any(word in kind for word in ("image", "audio", "file", "video", "document")):
        yield None
        return
    known = {"role", "type", "cache_control", "id", "tool_call_id", "index", *_TEXTS}
    for name, part in value.items():
        if name in _TEXTS or name == "tool_calls":
            yield from _parts(part)
        elif name not in known:
            yield json.dumps(part, default=str)
            yield name
    yield _PER_MESSAGE


def _of_model(value: Any) -> Iterator[str | int | None]:
    dump = getattr(value, "model_dump", None) or getattr(value, "dict", None)
    if dump is not None:
        yield from _parts(dump())
    else:
        yield json.dumps(getattr(value, "model_json_schema", lambda: str(value))())


@lru_cache(maxsize=4)
def _encoding(name: str) -> tiktoken.Encoding:
    bundled: tiktoken.Encoding = litellm.encoding  # type: ignore[attr-defined]  # lazy; reading it also points tiktoken to the files that LiteLLM brings
    return bundled if name == "cl100k_base" else tiktoken.get_encoding(name)
