"""Between the commands on settings, histories, marks and the outbox, and `records.lua`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct, pack, unpack_from
from typing import Any, Final

from llm_budget_hooks.transitions import (
    Epoch,
    EpochNow,
    Once,
    OnceAnswer,
    Post,
    Sampled,
    Samples,
    Settings,
    SettingsNow,
    Take,
    Taken,
)
from llm_budget_hooks.transitions.records import LEASE_MS

_HEAD: Final = Struct("<dddddd")
_THREE: Final = Struct("<ddd")

Encoded = tuple[bytes, bytes, bytes]
Record = Settings | Samples | Once | Post | Take | Epoch


def encode(command: Record) -> Encoded:
    """The arguments of a command, after its key."""
    now = -1 if command.now_ms is None else command.now_ms
    if type(command) is Settings:
        asked = zip(command.changes, command.was, strict=True)
        parts = [part for (name, text), was in asked for part in (name, _optional(was), _optional(text))]
        return _HEAD.pack(1, now, 0, 0, 0, 0), _strings(parts), b""
    if type(command) is Samples:
        values = [value for _, value in command.add]
        names = [*command.keys, *(key for key, _ in command.add)]
        return _HEAD.pack(2, now, len(command.keys), 0, 0, 0), _strings(names), pack(f"<{len(values)}d", *values)
    if type(command) is Once:
        head = _HEAD.pack(3, now, command.after, command.every_ms, command.keep_ms, command.reset)
        return head, _strings([command.key]), b""
    if type(command) is Post:
        parts = [part for row in command.rows for part in row]
        return _HEAD.pack(4, now, command.outbox_max, 0, 0, 0), _strings(parts), b""
    if type(command) is Epoch:
        return _HEAD.pack(6, now, 0, 0, 0, 0), _strings([command.known, command.made]), b""
    assert isinstance(command, Take)  # noqa: S101 - the union has no other member
    return _HEAD.pack(5, now, LEASE_MS, command.limit, 0, 0), _strings([command.owner, command.done]), b""


def decode(command: Record, reply: bytes) -> Any:
    """What `records.lua` answered."""
    if isinstance(command, Settings):
        now, changed, revision = _THREE.unpack_from(reply)
        texts = [*_texts(reply, _THREE.size)]
        return SettingsNow(int(now), int(revision), dict(zip(texts[::2], texts[1::2], strict=True)), bool(changed))
    if isinstance(command, Samples):
        return Sampled(int(unpack_from("<d", reply)[0]), tuple(_runs(reply)))
    if isinstance(command, Once):
        now, yes = unpack_from("<dd", reply)
        return OnceAnswer(int(now), bool(yes))
    if isinstance(command, Epoch):
        now, evicts = unpack_from("<dB", reply)
        return EpochNow(int(now), reply[9:].decode(), bool(evicts))
    now, leased, dropped = _THREE.unpack_from(reply)
    texts = [*_texts(reply, _THREE.size)]
    rows = tuple(
        (texts[at], texts[at + 1], texts[at + 2], texts[at + 3], int(texts[at + 4]), texts[at + 5], texts[at + 6])
        for at in range(0, len(texts), 7)
    )
    return Taken(int(now), bool(leased), rows, int(dropped))


def _optional(text: str | None) -> str:
    return "-" if text is None else f"+{text}"


def _strings(texts: list[str]) -> bytes:
    return "".join([text.replace("\0", "?") + "\0" for text in texts]).encode("utf-8", "replace")


def _texts(reply: bytes, at: int) -> Iterator[str]:
    while at < len(reply):
        length = unpack_from("<I", reply, at)[0]
        yield reply[at + 4 : at + 4 + length].decode("utf-8", "replace")
        at += 4 + length


def _runs(reply: bytes) -> Iterator[tuple[tuple[int, int], ...]]:
    at = 8
    while at < len(reply):
        count = int(unpack_from("<d", reply, at)[0])
        numbers = [*map(int, unpack_from(f"<{count}d", reply, at + 8))]
        yield tuple(zip(numbers[::2], numbers[1::2], strict=True))
        at += 8 + 8 * count
