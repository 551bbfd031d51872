"""Between commands and the arguments and replies of the Lua scripts. Pure; the layouts are in `shared.lua`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from struct import Struct, calcsize, unpack_from
from struct import error as struct_error
from typing import Any, Final, cast

from llm_budget_hooks.errors import StoreUnavailable
from llm_budget_hooks.stores.redis import records
from llm_budget_hooks.transitions import (
    Answer,
    Balance,
    Balances,
    Command,
    Failure,
    Finish,
    Finished,
    Hold,
    Mode,
    OrphanList,
    Orphans,
    Read,
    Reserve,
    Reserved,
    Rule,
    Shape,
    State,
    Verdict,
)

_NO_ANSWER: Final = "The server's answer is not one of this package's scripts. Is it really a Redis?"
_ELEVEN: Final = Struct("<ddddddddddd")
_CONSTANTS: Final = re.compile(r"^(local ([A-Z_]+(?:, [A-Z_]+)*) = ([\w', ]+)\n)", re.MULTILINE)
_SCOPES: Final = {"global": 0, "tenant": 1, "user": 2, "answer": 2}
_RULE: Final = Struct("<BBBddd")
_HOLD: Final = Struct("<BddddddBB")
_TEN: Final = Struct("<dddddddddd")
_HEAD: Final = Struct("<Bd")
_FAILURE: Final = Struct("<BdddBdd")
_FINISHED: Final = Struct("<BddBB")
_ADMITTED: Final = Struct("<Bddd")


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script as the server runs it.

    Attributes:
        source: the text.
        sha: what the server knows it by.
    """

    source: bytes
    sha: str


def _script(name: str) -> Script:
    folder = files(__package__)
    text = folded("\n".join((folder / file).read_text("utf-8") for file in ("shared.lua", name)))
    source = text.encode()
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


def folded(text: str) -> str:
    """A Lua source with its constants put in where they are used.

    Lua 5.1 does not do that: each local that a function refers to costs the server something at every run.
    """
    for line, names, values in _CONSTANTS.findall(text):
        text = text.replace(line, "")
        for name, value in zip(names.split(", "), values.split(", "), strict=True):
            text = re.sub(rf"\b{name}\b", value, text)
    return text


RESERVE: Final = _script("reserve.lua")
FINISH: Final = _script("finish.lua")
READ: Final = _script("read.lua")
RECORDS: Final = _script("records.lua")


@lru_cache(maxsize=256)
def _doubles(count: int) -> Struct:
    return Struct(f"<{count}d")


def script_of(command: Command) -> Script:
    """The script that carries out a command."""
    if type(command) is Reserve:
        return RESERVE
    if type(command) is Finish:
        return FINISH
    return READ if isinstance(command, (Read, Orphans)) else RECORDS


def encode(command: Command) -> tuple[bytes, ...]:
    """The arguments of a command's script, after its key."""
    if type(command) is Reserve:
        return _encode_reserve(command)
    if type(command) is Finish:
        return _encode_finish(command)
    if type(command) is Read:
        return _encode_read(command)
    if type(command) is not Orphans:
        return records.encode(cast("records.Record", command))
    terms = command.terms
    numbers = _TEN.pack(
        _now(command), 0, 0, terms.timeout_ms, terms.remember_ms, terms.utterance_timeout_ms, terms.exact_entries,
        0, command.limit, terms.outbox_max,
    )  # fmt: skip
    return numbers, b"", _strings(("", command.id or ""))


def _now(command: Command) -> int:
    return -1 if command.now_ms is None else command.now_ms


def _strings(texts: tuple[str, ...]) -> bytes:
    return ("\0".join(texts) + "\0").encode("utf-8", "replace")


def _encode_reserve(command: Reserve) -> tuple[bytes, ...]:
    terms, scopes = command.terms, command.scopes
    numbers = _doubles(13 + len(command.amounts)).pack(
        -1 if command.now_ms is None else command.now_ms, command.from_ms, command.until_ms, terms.timeout_ms,
        terms.remember_ms, terms.utterance_timeout_ms, terms.utterance_max_calls, terms.exact_entries, command.mode,
        len(scopes), command.revision, terms.outbox_max, command.since_ms, *command.amounts,
    )  # fmt: skip
    note = command.note if "\0" not in command.note else command.note.replace("\0", "?")
    last = (command.id, command.utterance, command.actual, command.history)
    texts = (command.content, note, *scopes, *command.keys, *last)
    return numbers, shape_of(command.shape), _strings(texts)


def _encode_finish(command: Finish) -> tuple[bytes, ...]:
    terms = command.terms
    numbers = _ELEVEN.pack(
        _now(command), command.ending, terms.timeout_ms, terms.remember_ms, terms.utterance_timeout_ms,
        terms.exact_entries, -1 if command.cost_nusd is None else command.cost_nusd,
        -1 if command.tokens is None else command.tokens, command.final, command.bury, terms.outbox_max,
    )  # fmt: skip
    carried = b"" if command.hold is None else encode_hold(command.hold)
    more = command.id.encode(), carried, command.actual.encode("utf-8", "replace"), command.place.encode()
    if not command.samples:
        return numbers, *more, b"", b""
    keys, values = zip(*command.samples, strict=True)
    return numbers, *more, _strings(keys), _doubles(len(values)).pack(*values)


def _encode_read(command: Read) -> tuple[bytes, ...]:
    terms = command.terms
    numbers = _TEN.pack(
        _now(command), command.from_ms, command.until_ms, terms.timeout_ms, terms.remember_ms,
        terms.utterance_timeout_ms, terms.exact_entries, len(command.scopes), 0, terms.outbox_max,
    )  # fmt: skip
    texts = (*command.scopes, *command.keys, command.utterance, "")
    return numbers, shape_of(command.shape), _strings(texts)


def shape_of(shape: Shape) -> bytes:
    """The rules of a shape, packed once."""
    if shape.encoded is None:
        shape.encoded = b"".join(
            _RULE.pack(r.meter, r.kind, _SCOPES[r.scope], r.limit, r.ends_ms, r.length_ms) for r in shape.rules
        )
    packed: bytes = shape.encoded
    return packed


def encode_hold(hold: Hold) -> bytes:
    """A hold's record, as the scripts store it."""
    count = len(hold.shape.rules)
    head = _HOLD.pack(
        hold.state, hold.created_ms, hold.deadline_ms, hold.timeout_ms,
        -1 if hold.cost_nusd is None else hold.cost_nusd, -1 if hold.tokens is None else hold.tokens,
        hold.until_ms, count, len(hold.scopes),
    )  # fmt: skip
    numbers = _doubles(count)
    texts = (hold.content, hold.note.replace("\0", "?"), *hold.scopes, *hold.keys)
    return head + shape_of(hold.shape) + numbers.pack(*hold.held) + numbers.pack(*hold.starts) + _strings(texts)


def decode_hold(raw: bytes) -> Hold:
    """A hold from its record. Its rules have lost the names of their budgets, which the store does not keep."""
    state, created, deadline, timeout, cost, tokens, until, count, scopes = _HOLD.unpack_from(raw)
    at = _HOLD.size
    rules = []
    for _ in range(count):
        meter, kind, scope, *numbers = _RULE.unpack_from(raw, at)
        rules.append(Rule("", ("global", "tenant", "user")[scope], meter, kind, *(int(n) for n in numbers)))
        at += _RULE.size
    held = _whole(raw, at, count)
    starts = _whole(raw, at + 8 * count, count)
    content, note, *names = raw[at + 16 * count :].decode("utf-8", "replace").split("\0")[:-1]
    return Hold(
        content, state, int(created), int(deadline), int(timeout), Shape(tuple(rules)),
        tuple(names[scopes:]), tuple(names[:scopes]), held, starts, note,
        None if cost < 0 else int(cost), None if tokens < 0 else int(tokens), int(until),
    )  # fmt: skip


def _whole(raw: bytes, at: int, count: int) -> tuple[int, ...]:
    return tuple(map(int, _doubles(count).unpack_from(raw, at)))


def decode(command: Command, reply: object) -> Answer:
    """What a script answered.

    Raises:
        StoreUnavailable: the reply is not the answer to this command; the connection is out of step.
    """
    try:
        return _decoded(command, reply)
    except (struct_error, AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise StoreUnavailable(_NO_ANSWER) from error


def _decoded(command: Command, reply: Any) -> Answer:
    if type(command) is Reserve:
        return _decode_reserve(command, _echoed(command.id, reply))
    if type(command) is Finish:
        body = _echoed(command.id, reply)
        ended, now, deadline, differs, state = _FINISHED.unpack_from(body)
        spent = _whole(body, _FINISHED.size, (len(body) - _FINISHED.size) // 8)
        return Finished(ended, int(now), int(deadline), bool(differs), state, spent)
    if type(command) is Read:
        return _decode_balances(reply)
    if type(command) is Orphans:
        return _decode_orphans(reply)
    answer: Answer = records.decode(cast("records.Record", command), reply)
    return answer


def _echoed(id: str, reply: bytes) -> bytes:
    """The reply without the id at its end, which tells it from the answer to another command."""
    echo = id.encode()
    if not reply.endswith(echo):
        raise StoreUnavailable("The server answered another command: the connection was out of step. Nothing is held.")
    return reply[: len(reply) - len(echo)]


def _decode_reserve(command: Reserve, reply: bytes) -> Reserved:
    verdict, now = _HEAD.unpack_from(reply)
    if verdict in (Verdict.ADMITTED, Verdict.DUPLICATE):
        _, _, created, deadline = _ADMITTED.unpack_from(reply)
        count = len(command.keys) if len(reply) > _ADMITTED.size else 0
        held = _whole(reply, _ADMITTED.size, count)
        starts = _whole(reply, _ADMITTED.size + 8 * count, count)
        charged = count if command.mode in (Mode.CHARGE, Mode.FORCE) else 0
        at = _ADMITTED.size + 16 * count
        spent = _whole(reply, at, charged)
        read = command.history and command.mode != Mode.CHECK and verdict == Verdict.ADMITTED
        runs = _runs(reply, at + 8 * charged) if read else None
        return Reserved(verdict, int(now), int(created), int(deadline), held, starts, spent=spent, runs=runs)
    if verdict == Verdict.REFUSED:
        return Reserved(verdict, int(now), failures=tuple(map(_failure, _FAILURE.iter_unpack(reply[_HEAD.size :]))))
    state = reply[_HEAD.size] if verdict == Verdict.ENDED else State.OPEN
    runs = _runs(reply, _HEAD.size) if verdict == Verdict.LEARN else None
    return Reserved(verdict, int(now), state=state, runs=runs)


def _runs(reply: bytes, at: int) -> tuple[tuple[int, int], ...]:
    numbers = _whole(reply, at, (len(reply) - at) // 8)
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _failure(row: tuple[float, ...]) -> Failure:
    index, spent, reserved, requested, busy, resets, retry = row
    return Failure(int(index), int(spent), int(reserved), int(requested), bool(busy), int(resets), int(retry))


def _decode_balances(reply: bytes) -> Balances:
    verdict, now, calls, revision = unpack_from("<Bddd", reply)
    rows = Struct("<ddd").iter_unpack(reply[calcsize("<Bddd") :])
    accounts = tuple(Balance(int(spent), int(reserved), int(resets)) for spent, reserved, resets in rows)
    return Balances(verdict, int(now), accounts, int(calls), int(revision))


def _decode_orphans(reply: bytes) -> OrphanList:
    now, at, parts = unpack_from("<d", reply)[0], 8, []
    while at < len(reply):
        size = int.from_bytes(reply[at : at + 4], "little")
        parts.append(reply[at + 4 : at + 4 + size])
        at += 4 + size
    holds = tuple((id.decode(), decode_hold(raw)) for id, raw in zip(parts[::2], parts[1::2], strict=True))
    return OrphanList(int(now), holds)
