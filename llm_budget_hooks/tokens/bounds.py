"""`input_bound`: the most tokens that a provider can count for a request's prompt."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from llm_budget_hooks.tokens.encodings import loaded
from llm_budget_hooks.tokens.media import IMAGES, SOUNDS, UNBOUNDED, image_bound, sound_bound
from llm_budget_hooks.tokens.texts import Texts, byte_bound

_log = logging.getLogger("llm_budget_hooks")
_PER_REQUEST: Final = 32
_PER_MESSAGE: Final = 16
_PER_PART: Final = 8
_PER_TOOL: Final = 32
_TOOL_PROMPT: Final = 600
"""What a provider adds to explain tools to the model; the largest known is Anthropic's, 346 to 530 tokens."""
_DECLARED: Final = ("tools", "functions", "response_format", "text", "output_config", "prediction")
_ELSEWHERE: Final = frozenset({"previous_response_id", "conversation", "cached_content", "cachedContent"})
_TOOLS: Final = ("tools", "functions")
_MESSAGE: Final = frozenset({"role", "content"})
_INSIDE: Final = ("content", "parts", "toolResult", "output")


class _Unbounded(Exception):
    """The size of a part cannot be told from the request."""


def input_bound(
    model: str,
    prompt: Iterable[Any],
    asked: Mapping[str, Any] | None = None,
    *,
    audio: bool = False,
    exact: bool = True,
) -> int | None:
    """The most tokens that a provider can count for a prompt; None if nothing in the request bounds it. Never raises.

    To the texts come the marks around messages, and tools and schemas as their JSON. An image counts as the largest
    that the model takes. Files and films have no bound, nor has a request that continues a stored conversation.
    What a provider's own tools (a web search, say) add to the prompt on its side is not in it.

    Args:
        model: the model's name.
        prompt: messages as mappings, texts, or lists of tokens.
        asked: the request's parameters; tools and schemas are declared in them.
        audio: count sound at the most that it can be; else a prompt with sound has no bound, because its tokens
            cost more than those of text.
        exact: count with the model's tokenizer, if it was loaded; else the bound is the same in every process.
    """
    declared = asked or {}
    if not _ELSEWHERE.isdisjoint(declared) and any(declared.get(name) for name in _ELSEWHERE):
        return None
    counting = _Counting(model, audio, exact)
    try:
        total = _PER_REQUEST + sum([_PER_MESSAGE + counting.value(each) for each in prompt])
        return total + counting.declared(declared)
    except (_Unbounded, RecursionError):
        return None
    except Exception as error:  # noqa: BLE001 - somebody else's object can raise anything, and has no size then
        _log.warning("A prompt could not be measured, so its model's largest input is held: %s", type(error).__name__)
        return None


class _Counting:
    """Counts the parts of one prompt."""

    __slots__ = ("_audio", "_image", "_model", "_text")

    def __init__(self, model: str, audio: bool, exact: bool) -> None:
        self._model = model
        self._audio = audio
        self._image = 0
        encoding = loaded(model) if exact else None
        self._text: Callable[[str], int] = byte_bound if encoding is None else Texts(encoding).bound

    def value(self, value: Any) -> int:
        if isinstance(value, str):
            return self._text(value)
        if type(value) is dict or isinstance(value, Mapping):
            return self._part(value)
        if value is None or isinstance(value, bool | int):
            return 1
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return sum([1 if type(item) is int else _PER_PART + self.value(item) for item in value])
        dump = getattr(value, "model_dump", None) or getattr(value, "dict", None)
        return self.value(dump()) if callable(dump) and not isinstance(value, type) else self._json(value)

    def declared(self, asked: Mapping[str, Any]) -> int:
        total = 0
        for name in _DECLARED:
            value = asked.get(name)
            if value:
                total += self._json(value)
                if name in _TOOLS:
                    total += _TOOL_PROMPT + _PER_TOOL * (len(value) if isinstance(value, Sequence) else 1)
        return total

    def _part(self, part: Mapping[str, Any]) -> int:
        if part.keys() == _MESSAGE and isinstance(part["content"], str):
            return _PER_PART + self._text(part["content"])
        kind = part.get("type")
        if kind in IMAGES or "image" in part or _mime(part).startswith("image/"):
            return self._image_bound()
        if kind in SOUNDS or _mime(part).startswith("audio/"):
            return self._sound(part)
        if kind in UNBOUNDED or "document" in part or "video" in part or _mime(part):
            raise _Unbounded
        inside = [name for name in _INSIDE if isinstance(part.get(name), str | list | Mapping)]
        if not inside:
            return self._json(part)
        total = sum(_PER_PART + self.value(part[name]) for name in inside)
        rest = {name: value for name, value in part.items() if name not in inside and value is not None}
        rest.pop("role", None)
        return total + (self._json(rest) if rest else 0)

    def _image_bound(self) -> int:
        if not self._image:
            self._image = image_bound(self._model)
        return self._image

    def _sound(self, part: Mapping[str, Any]) -> int:
        bound = sound_bound(part.get("inlineData") or part.get("inline_data") or part) if self._audio else None
        if bound is None:
            raise _Unbounded
        return bound

    def _json(self, value: Any) -> int:
        return self._text(json.dumps(value, default=_shown, ensure_ascii=False))


def _mime(part: Mapping[str, Any]) -> str:
    """The kind of a Gemini part that is no text; empty for all others."""
    for name in ("inlineData", "inline_data", "fileData", "file_data"):
        found = part.get(name)
        if isinstance(found, Mapping):
            return str(found.get("mimeType") or found.get("mime_type") or "unknown/unknown")
    return ""


def _shown(value: Any) -> Any:
    """What cannot be written as JSON, as it is sent: models by their fields, their classes by their schema."""
    for name in ("model_json_schema", "model_dump", "dict"):
        if isinstance(value, type) == (name == "model_json_schema") and callable(found := getattr(value, name, None)):
            return found()
    return str(value)
