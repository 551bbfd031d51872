"""Every store answers as the state machine does, and has its balances: outcome and state after every command."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores_under_test import Awaited, all_stores, blocking

from llm_budget_hooks.transitions import (
    CLOCK_STEP_MS,
    MAX_AMOUNT,
    Balances,
    Ending,
    Finish,
    Kind,
    Meter,
    Mode,
    OrphanList,
    Orphans,
    Read,
    Reserve,
    Rule,
    Shape,
    Terms,
)

T0 = 1_764_000_000_000
DAY = 86_400_000
# A Redis drops keys by real time, while the clock here stands: all intervals are longer than a script takes.
ROLL = 600_000
TERMS = Terms(
    timeout_ms=400_000, remember_ms=900_000, utterance_timeout_ms=500_000, utterance_max_calls=3, exact_entries=4
)
NUMBERS = itertools.count()


def rule(scope: str, meter: Meter, kind: Kind, limit: int) -> Rule:
    length = {Kind.CALENDAR: DAY, Kind.FIXED: ROLL, Kind.ROLLING: ROLL}.get(kind, 0)
    ends = T0 + DAY if kind == Kind.CALENDAR else 0
    return Rule(f"{scope}-{meter.name}-{kind.name}", scope, meter, kind, limit, ends, length)


RULES = (
    rule("global", Meter.USD, Kind.CALENDAR, 900),
    rule("tenant", Meter.USD, Kind.ROLLING, 500),
    rule("user", Meter.USD, Kind.FIXED, 300),
    rule("user", Meter.TOKENS, Kind.CALENDAR, 2_000),
    rule("tenant", Meter.TOKENS, Kind.FIXED, 1_500),
    rule("tenant", Meter.CALLS, Kind.ROLLING, 9),
    rule("user", Meter.UTTERANCES, Kind.ROLLING, 5),
    rule("user", Meter.CALLS, Kind.FIXED, 6),
    rule("global", Meter.UTTERANCES, Kind.CALENDAR, 40),
    rule("user", Meter.IN_FLIGHT, Kind.GAUGE, 3),
    rule("answer", Meter.USD, Kind.ANSWER, 250),
    rule("answer", Meter.IN_FLIGHT, Kind.ANSWER, 2),
)
PREFIXES = [f"b{at}." for at in range(len(RULES))]
SHAPES = [
    tuple(range(len(RULES))),
    (0, 1, 2, 10),
    (5, 6, 9, 11),
    (3, 4, 7, 8),
    (),
]

users = st.sampled_from(["u1", "u2"])
tenants = st.sampled_from(["t1", "t2"])
amounts = st.integers(0, 260)
actuals = amounts | st.sampled_from([MAX_AMOUNT - 3, MAX_AMOUNT])
steps = st.one_of(
    st.tuples(
        st.just("reserve"), st.integers(0, 6), st.sampled_from(range(len(SHAPES))), tenants, users, amounts,
        st.sampled_from(["", "x", "y"]), st.sampled_from(["c", "d"]), st.sampled_from([*Mode, Mode.HOLD, Mode.HOLD]),
        st.sampled_from(["", "", "k"]), st.sampled_from([MAX_AMOUNT, T0, T0 + 3_000]),
    ),
    st.tuples(
        st.just("finish"), st.integers(0, 6), st.sampled_from([*Ending]), actuals, *[st.booleans()] * 4
    ),
    st.tuples(st.just("wait"), st.sampled_from([1, 9_999, 10_000, 10_001, 70_000, 200_000, 400_000, 600_000, 950_000])),
    st.tuples(st.just("wait"), st.sampled_from([-1, -1_000, -10_001, -CLOCK_STEP_MS])),
    st.tuples(st.just("orphans")),
)  # fmt: skip


def keys_of(shape: tuple[int, ...], tenant: str, user: str, utterance: str) -> tuple[str, ...]:
    keys = []
    for at in shape:
        whose = {"global": "", "tenant": tenant, "user": tenant + user, "answer": tenant + user + utterance}
        suffix = ":1" if RULES[at].kind == Kind.CALENDAR else ""
        keys.append(
            "" if RULES[at].scope == "answer" and not utterance else PREFIXES[at] + whose[RULES[at].scope] + suffix
        )
    return tuple(keys)


def command_of(step: Any, now: int, held: dict[str, Any]) -> Any:
    if step[0] == "reserve":
        _, number, which, tenant, user, amount, utterance, content, mode, history, since = step
        shape = SHAPES[which]
        by_meter = {Meter.USD: amount, Meter.TOKENS: amount * 3}
        values = tuple(by_meter.get(Meter(RULES[at].meter), 1) for at in shape)
        return Reserve(
            "" if mode == Mode.CHECK else f"h{number}", content, Shape(tuple(RULES[at] for at in shape)),
            keys_of(shape, tenant, user, utterance), values, (tenant + user, tenant, ""),
            f"{tenant}{user}{utterance}" if utterance else "", TERMS, T0, T0 + DAY, mode, "model", now,
            actual=f"journal {amount}" if mode == Mode.REPLAY else "", history=history, since_ms=since,
        )  # fmt: skip
    if step[0] == "finish":
        _, number, ending, amount, final, carried, bury, sampled = step
        id = f"h{number}"
        return Finish(
            id, ending, TERMS, amount if final else None, amount * 2 if final and amount % 2 else None, final,
            held.get(id) if carried else None, bury, now, place=f"journal {amount}" if bury and carried else "",
            samples=(("k", amount), ("l", 7)) if sampled else (),
        )  # fmt: skip
    return Orphans(TERMS, now_ms=now)


def balances(now: int) -> list[Read]:
    reads = []
    for tenant, user in itertools.product(("t1", "t2"), ("u1", "u2")):
        for utterance in ("x", "y"):
            everything = tuple(range(len(RULES)))
            reads.append(
                Read(
                    Shape(RULES),
                    keys_of(everything, tenant, user, utterance),
                    (tenant + user, tenant, ""),
                    TERMS,
                    f"{tenant}{user}{utterance}",
                    T0,
                    T0 + DAY,
                    now,
                )
            )
    return reads


def comparable(answer: Any) -> Any:
    if isinstance(answer, OrphanList):
        shown = [(id, h.state, h.created_ms, h.deadline_ms, h.held, h.keys, h.note) for id, h in answer.holds]
        opened = [row for row in shown if row[1] == 0]
        return opened, sorted(row for row in shown if row[1] != 0)
    return answer


def fresh(command: Any) -> Any:
    """A copy for one store: a carried hold is changed in place, and a shape keeps a store's own form of itself."""
    if isinstance(command, Finish) and command.hold is not None:
        return replace(command, hold=replace(command.hold, shape=Shape(command.hold.shape.rules)))
    if isinstance(command, (Reserve, Read)):
        return replace(command, shape=Shape(command.shape.rules))
    return command


def carried_hold(command: Reserve, answer: Any) -> Any:
    from llm_budget_hooks.transitions import Hold

    return Hold(
        command.content, 0, answer.created_ms, answer.deadline_ms, TERMS.timeout_ms, command.shape, command.keys,
        command.scopes, answer.held, answer.starts, command.note,
    )  # fmt: skip


@pytest.mark.parametrize("face", ["blocking", "awaited"])
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(script=st.lists(steps, min_size=1, max_size=25))
def test_every_store_is_the_state_machine(face: str, tmp_path: Path, redis_servers: Any, script: list[Any]) -> None:
    run: Any = blocking if face == "blocking" else Awaited()
    with all_stores(tmp_path, redis_servers, next(NUMBERS)) as stores:
        now, latest, held = T0 + 1_000, T0 + 1_000, {}
        for step in script:
            if step[0] == "wait":
                now = max(now + step[1], latest - CLOCK_STEP_MS)
                latest = max(latest, now)
            else:
                command = command_of(step, now, held)
                answers = {name: comparable(run(store, fresh(command))) for name, store in stores.items()}
                for name, answer in answers.items():
                    assert answer == answers["memory"], (name, command)
                answer = answers["memory"]
                if step[0] == "reserve" and answer.verdict == 0 and command.mode == Mode.HOLD:
                    held[command.id] = carried_hold(command, answer)
            for read in balances(now)[:: 1 if step is script[-1] else 3]:
                found = {name: run(store, fresh(read)) for name, store in stores.items()}
                for name, answer in found.items():
                    assert isinstance(answer, Balances)
                    assert answer == found["memory"], (name, read)
                    assert all(account.spent >= 0 <= account.reserved for account in answer.accounts), (name, read)
        if face == "awaited":
            run.close(*stores.values())
