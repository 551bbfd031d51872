"""Every store keeps settings, histories, marks and the outbox as the state machine does."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores_under_test import all_stores, blocking

from llm_budget_hooks.transitions import Once, Post, Samples, Settings, Take, Taken

T0 = 1_764_000_000_000
NUMBERS = itertools.count()
names = st.sampled_from(["a", "b", "tenant:\u00e9"])
texts = st.sampled_from(["", "{}", "x y\n", "\u65e5\u672c"])
steps = st.one_of(
    st.tuples(st.just("settings"), st.lists(st.tuples(names, st.none() | texts), max_size=2).map(tuple), st.booleans()),
    st.tuples(st.just("samples"), st.lists(st.tuples(names, st.integers(0, 2**50)), max_size=25).map(tuple)),
    st.tuples(st.just("once"), names, st.integers(0, 2), st.sampled_from([0, 500, 10**9]), st.booleans()),
    st.tuples(st.just("post"), st.lists(st.tuples(names, names, texts), min_size=1, max_size=4).map(tuple)),
    st.tuples(st.just("take"), st.sampled_from(["me", "you"]), st.booleans(), st.integers(1, 4)),
    st.tuples(st.just("wait"), st.sampled_from([-60_000, -1, 1, 499, 500, 86_400_000, 29 * 86_400_000])),
)


def command_of(step: Any, now: int, last: str, kept: dict[str, str]) -> Any:
    match step:
        case ("settings", changes, behind):
            return Settings(changes, tuple("of before" if behind else kept.get(name) for name, _ in changes), now)
        case ("samples", add):
            return Samples(("a", "b", "none"), add, now)
        case ("once", key, after, every, reset):
            return Once(key, after, every, 10**10, reset, now)
        case ("post", rows):
            return Post(rows, 6, now)
        case ("take", owner, done, limit):
            return Take(owner, last if done else "", limit, now)


def comparable(answer: Any) -> Any:
    """An answer without the numbers of its rows, which each store gives in its own way."""
    return (answer.leased, [row[1:] for row in answer.rows], answer.dropped) if isinstance(answer, Taken) else answer


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(script=st.lists(steps, min_size=1, max_size=20))
def test_every_store_keeps_the_same_records(tmp_path: Path, redis_servers: Any, script: list[Any]) -> None:
    with all_stores(tmp_path, redis_servers, next(NUMBERS)) as stores:
        now, last = T0, dict.fromkeys(stores, "")
        kept: dict[str, str] = {}
        owner = "me"  # the lease of a Redis ends by the server's own clock
        for step in script:
            if step[0] == "wait":
                now += step[1]
                continue
            if step[0] == "take":
                step = ("take", owner, *step[2:])
            answers = {}
            for name, store in stores.items():
                answer = blocking(store, command_of(step, now, last[name], kept))
                if isinstance(answer, Taken) and answer.rows:
                    last[name] = answer.rows[-1][0]
                answers[name] = answer
            for name, answer in answers.items():
                assert comparable(answer) == comparable(answers["memory"]), (name, step)
            if step[0] == "settings":
                kept = answers["memory"].texts
                assert answers["memory"].changed == (bool(step[1]) and not step[2])


def test_one_owner_drains_at_a_time(tmp_path: Path, redis_servers: Any) -> None:
    with all_stores(tmp_path, redis_servers, next(NUMBERS)) as stores:
        for store in stores.values():
            blocking(store, Post((("event", "1", "first"), ("event", "2", "second")), 10))
            mine = blocking(store, Take("me", "", 1))
            assert [row[2] for row in mine.rows] == ["1"]
            assert not blocking(store, Take("you", "", 10)).leased
            rest = blocking(store, Take("me", mine.rows[0][0], 10))
            assert [row[2] for row in rest.rows] == ["2"]
            assert not blocking(store, Take("you", "", 10)).leased
            assert not blocking(store, Take("me", rest.rows[-1][0], 10)).rows
            assert blocking(store, Take("you", "", 10)).leased
