"""The most tokens that an image or a sound can have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from llm_budget_hooks.tokens.wave import seconds_of

_IMAGES: Final = (
    (re.compile("4o-mini"), 50_000),
    (re.compile(r"qwen|-vl\b|gpt-5\.[4-9]|gpt-[6-9]"), 17_000),
)
"""The largest image of gpt-4o-mini is 2833 + 8 tiles of 5667 tokens (OpenAI, "Images and vision"); Qwen-VL takes
16,384, and models that take images in their original size 10,000 patches and more."""
_IMAGE: Final = 6_000
"""Other models stay below 5,000: Claude 4,784, Gemini 2,240, tiles and patches of OpenAI 3,800."""
_SOUND_PER_SECOND: Final = 32
"""Gemini counts 32 tokens a second, OpenAI 10 (Gemini, "Audio understanding"; OpenAI, "Audio")."""

IMAGES: Final = frozenset({"image", "image_url", "input_image"})
SOUNDS: Final = frozenset({"audio", "input_audio"})
UNBOUNDED: Final = frozenset(
    {"file", "input_file", "video", "video_url", "document", "media", "item_reference", "container_upload"}
)
"""Parts whose size cannot be told from the request."""


def has_sound(contents: Iterable[Any]) -> bool:
    """Whether a part of what messages contain is sound."""
    for parts in contents:
        if isinstance(parts, list) and any(isinstance(part, Mapping) and part.get("type") in SOUNDS for part in parts):
            return True
    return False


def image_bound(model: str) -> int:
    """The most tokens that one image can have."""
    name = model.lower()
    return next((most for pattern, most in _IMAGES if pattern.search(name)), _IMAGE)


def sound_bound(part: Mapping[str, Any]) -> int | None:
    """The most tokens that a sound can have; None if it is not in the request itself."""
    inner = part.get("input_audio") or part.get("audio") or part.get("source") or part
    content = inner.get("data") or inner.get("base64") if isinstance(inner, Mapping) else None
    if not isinstance(content, str | bytes) or not content:
        return None
    return _SOUND_PER_SECOND * (seconds_of(content) + 1)
