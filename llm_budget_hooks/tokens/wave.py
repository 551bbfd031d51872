"""How long a sound can be, from its bytes."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Final

_LEAST_RATE: Final = 500
"""Bytes a second. Speech codecs go down to 6 kbit/s (Opus, RFC 6716), MP3 to 8."""
_HEADER: Final = 60


def seconds_of(content: str | bytes) -> int:
    """The most seconds that a sound can last, rounded up.

    Args:
        content: its bytes, or them in base64.
    """
    head, size = _head(content)
    rate = _wave_rate(head) or _LEAST_RATE
    return -(-size // rate)


def _head(content: str | bytes) -> tuple[bytes, int]:
    if isinstance(content, bytes):
        return content[:_HEADER], len(content)
    text = content.partition(",")[2] if content.startswith("data:") else content
    try:
        return base64.b64decode(text[: _HEADER * 4 // 3]), -(-len(text) * 3 // 4)
    except (binascii.Error, ValueError):
        return b"", len(text)


def _wave_rate(head: bytes) -> int:
    """Bytes a second of an uncompressed WAVE file; 0 for anything else."""
    if len(head) < 36 or head[:4] != b"RIFF" or head[8:16] != b"WAVEfmt ":
        return 0
    kind, channels, hertz, _, _, bits = struct.unpack("<HHIIHH", head[20:36])
    return channels * hertz * (bits // 8) if kind == 1 else 0
