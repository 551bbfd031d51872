"""From the texts in an outbox to the rows of the ledger."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_budget_hooks.models import Usage
from llm_budget_hooks.models.trail import (
    Adjustment,
    Entry,
    Event,
    Override,
    Refusal,
    Run,
    adjustment_facts,
    event_facts,
    override_facts,
    refusal_facts,
    row_of,
    run_actual,
    run_facts,
    stored_text,
)

ESTIMATE = 1_000


def facts(**changed: Any) -> str:
    names = {
        "tenant": "acme", "user": "u1", "utterance": "ut-7", "feature": "chat", "step": "answer",
        "model": "gpt-4o-mini", "estimate_nusd": ESTIMATE, "basis": "p90",
    }  # fmt: skip
    return run_facts(**{**names, **changed})


def run(kind: str, was: str = "open", actual: str = "", **changed: Any) -> Run:
    row = row_of(Entry("1", 5, kind, "r-1", was, facts(**changed), actual))
    assert isinstance(row, Run)
    return row


def test_a_settled_run_has_all_that_was_said_of_it() -> None:
    usage = Usage(input_tokens=9, cached_input_tokens=4, cache_write_tokens=2, output_tokens=7, reasoning_tokens=3)
    row = run("settled", actual=run_actual("gpt-4o-mini-2024-07-18", 77, usage, flags=("priced_as", "clamped")))
    assert row == Run(
        id="r-1", kind="settled", status="settled", at_ms=5, tenant="acme", user="u1", utterance="ut-7",
        feature="chat", step="answer", model="gpt-4o-mini", served="gpt-4o-mini-2024-07-18", estimate_nusd=ESTIMATE,
        basis="p90", cost_nusd=77, booked_nusd=77, exact=True, flags="priced_as,clamped", input_tokens=9,
        cached_input_tokens=4, cache_write_tokens=2, output_tokens=7, reasoning_tokens=3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "was", "cost", "status", "booked"),
    [
        ("settled", "", 300, "settled", 300),
        ("settled", "open", 300, "settled", 300),
        ("settled", "open", 5_000, "settled", 5_000),
        ("settled", "expired", 300, "late", 300 - ESTIMATE),
        ("settled", "charged", 5_000, "late", 4_000),
        ("settled", "released", 300, "late", 300),
        ("charged", "open", None, "charged", ESTIMATE),
        ("expired", "open", None, "expired", ESTIMATE),
        ("released", "open", None, "released", 0),
        ("released", "expired", None, "released", -ESTIMATE),
        ("released", "charged", None, "released", -ESTIMATE),
    ],
)
def test_each_end_books_the_difference_it_makes(
    kind: str, was: str, cost: int | None, status: str, booked: int
) -> None:
    row = run(kind, was, "" if cost is None else run_actual(cost_nusd=cost))
    assert (row.status, row.booked_nusd) == (status, booked)


@given(
    st.sampled_from([(), ("expired",), ("charged",), ("released",), ("expired", "released"), ("charged", "released")]),
    st.one_of(st.none(), st.integers(0, 10**14)),
    st.integers(0, 10**14),
)
def test_the_rows_of_a_hold_add_up_to_what_it_costs(ends: tuple[str, ...], cost: int | None, estimate: int) -> None:
    states = ["open", *ends, *([] if cost is None else ["settled"])]
    rows = [
        run(kind, was, run_actual(cost_nusd=cost) if kind == "settled" else "", estimate_nusd=estimate)
        for was, kind in pairwise(states)
    ]
    last = states[-1]
    wanted = cost if last == "settled" else estimate if last in ("expired", "charged") else 0
    assert sum(row.booked_nusd for row in rows) == wanted
    assert not rows or rows[-1].cost_nusd == wanted


def test_b020_a_settle_without_a_price_books_the_estimate_and_says_so() -> None:
    row = run("settled", actual=run_actual(usage=Usage(input_tokens=9), flags=("unpriced",)))
    assert (row.booked_nusd, row.exact, row.flags, row.input_tokens) == (ESTIMATE, False, "unpriced", 9)


def test_a_guess_is_not_exact() -> None:
    assert run("settled", actual=run_actual(cost_nusd=3)).exact
    assert not run("settled", actual=run_actual(cost_nusd=3, exact=False)).exact
    assert not run("settled", actual=run_actual(cost_nusd=3, usage=Usage(exact=False))).exact
    assert not run("expired").exact


def test_what_nobody_named_has_its_default() -> None:
    row = run("expired", tenant=None, user=None, utterance=None, feature=None, step=None)
    assert (row.tenant, row.user, row.utterance, row.feature, row.step) == ("default", "", "r-1", "", "gpt-4o-mini")


def test_rows_of_all_other_kinds_come_back_as_they_were_given() -> None:
    made = [
        (Refusal, "refusal", refusal_facts(code="spend", budget="user-day", limit=5, spent=None, count=3)),
        (Event, "event", event_facts("killed", tenant="acme", by="ops", text="runaway")),
        (Override, "override", override_facts(tenant="acme", budget="user-day", limit="$5", expires_ms=9)),
        (Adjustment, "adjust", adjustment_facts(tenant="acme", booked_nusd=-400, reason="a price was wrong")),
    ]
    assert [row_of(Entry("1", 5, kind, "x", "", text)) for _, kind, text in made] == [
        Refusal(id="x", at_ms=5, code="spend", budget="user-day", limit=5, count=3),
        Event(id="x", at_ms=5, name="killed", tenant="acme", by="ops", text="runaway"),
        Override(id="x", at_ms=5, tenant="acme", budget="user-day", limit="$5", expires_ms=9),
        Adjustment(id="x", at_ms=5, tenant="acme", booked_nusd=-400, reason="a price was wrong"),
    ]


@pytest.mark.parametrize(
    "entry",
    [
        Entry("1", 5, "exploded", "x"),
        Entry("1", 5, "settled", "x", "open", "no json"),
        Entry("1", 5, "settled", "x", "open", '["too","few"]'),
        Entry("1", 5, "settled", "x", "open", facts(), "[null,1.5,true,[]]"),
        Entry("1", 5, "settled", "x", "open", facts(), f"[null,{2**70},true,[]]"),
        Entry("1", 5, "event", "x", "", '{"name":"a","colour":"red"}'),
        Entry("1", 5, "event", "x", "", '{"name":"a","id":"other"}'),
        Entry("1", 5, "event", "x", "", "[]"),
        Entry("1", 5, "event", "x", "", "{}"),
    ],
    ids=range(9),
)
def test_an_entry_of_another_make_is_a_value_error(entry: Entry) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        row_of(entry)


@given(st.text(st.characters(codec=None), max_size=600))
def test_b136_any_text_can_be_kept(text: str) -> None:
    kept = stored_text(text)
    assert len(kept) <= 200
    assert "\0" not in kept
    kept.encode()


def test_b136_ids_that_differ_stay_different() -> None:
    ids = ["a\0", "a\ufffd", "a\ud800", "a\ud801", "é" * 300, "é" * 301, "x" * 200, "x" * 201, "x" * 10_000]
    assert len({stored_text(id) for id in ids}) == len(ids)
    assert stored_text(" e\u0301 ") == stored_text("é") == "é"
    assert stored_text(None) == stored_text("  ") == ""
