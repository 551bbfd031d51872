"""Commands as texts that outlive the process, and back. Pure; what a policy says now is filled in when they are read.

A text is JSON in ASCII, so that half a surrogate pair in an id survives it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from llm_budget_hooks.transitions import Finish, Hold, Mode, Post, Reserve, Rule, Shape, Terms

_VERSION: Final = 1


Kept = Reserve | Finish | Post
"""What a journal keeps."""


def text_of(command: Kept) -> str:
    """The text of a hold that is to be replayed, of the end of one, or of entries of the trail."""
    if isinstance(command, Post):
        facts: tuple[Any, ...] = ("post", command.rows, command.now_ms)
    else:
        facts = _reserve(command) if isinstance(command, Reserve) else _finish(command)
    return json.dumps([_VERSION, *facts], separators=(",", ":"))


def command_of(text: str, place: str, terms: Terms, now_ms: int | None) -> Kept:
    """The command of a text.

    Args:
        text: what `text_of` made.
        place: the journal and the number in it.
        terms: the policy's intervals.
        now_ms: the time, where the caller's clock rules.

    Raises:
        ValueError: the text is of another version.
    """
    version, kind, *facts = json.loads(text)
    if version != _VERSION:
        raise ValueError(f"the journal was written by another version of this package ({version})")
    if kind == "hold":
        id, content, rules, keys, amounts, scopes, utterance, note = facts
        return Reserve(
            id, content, _shape(rules), tuple(keys), tuple(amounts), tuple(scopes), utterance, terms,
            mode=Mode.REPLAY, note=note, now_ms=now_ms, actual=place,
        )  # fmt: skip
    if kind == "post":
        return Post(tuple((kind, id, row) for kind, id, row in facts[0]), terms.outbox_max, facts[1])
    id, ending, cost, tokens, final, bury, samples, actual, hold = facts
    pairs = tuple((key, value) for key, value in samples)
    return Finish(id, ending, terms, cost, tokens, final, _hold(hold), bury, now_ms, pairs, actual, place)


def _reserve(command: Reserve) -> tuple[Any, ...]:
    return (
        "hold", command.id, command.content, _rules(command.shape), command.keys, command.amounts, command.scopes,
        command.utterance, command.note,
    )  # fmt: skip


def _finish(command: Finish) -> tuple[Any, ...]:
    hold = command.hold
    carried = None if hold is None else (
        hold.content, int(hold.state), hold.created_ms, hold.deadline_ms, hold.timeout_ms, _rules(hold.shape),
        hold.keys, hold.scopes, hold.held, hold.starts, hold.note,
    )  # fmt: skip
    return (
        "end", command.id, int(command.ending), command.cost_nusd, command.tokens, command.final, command.bury,
        command.samples, command.actual, carried,
    )  # fmt: skip


def _rules(shape: Shape) -> list[tuple[Any, ...]]:
    return [(r.budget, r.scope, int(r.meter), int(r.kind), r.limit, r.ends_ms, r.length_ms) for r in shape.rules]


def _shape(rules: list[list[Any]]) -> Shape:
    return Shape(tuple(Rule(*rule) for rule in rules))


def _hold(facts: list[Any] | None) -> Hold | None:
    if facts is None:
        return None
    content, state, created, deadline, timeout, rules, keys, scopes, held, starts, note = facts
    return Hold(
        content, state, created, deadline, timeout, _shape(rules), tuple(keys), tuple(scopes), tuple(held),
        tuple(starts), note,
    )  # fmt: skip
