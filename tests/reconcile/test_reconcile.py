"""The ledger against books: what is flagged, with which cause, from files and from servers."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from books_server import (
    BooksServer,
    anthropic_bucket,
    anthropic_cost,
    anthropic_usage,
    openai_bucket,
    openai_cost,
    openai_usage,
    paged,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_budget_hooks import BudgetEngine, BudgetError, BudgetExceeded, Call, Usage
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.reconcile import (
    AnthropicBooks,
    Billed,
    BooksUnavailable,
    ExportedBooks,
    LiteLLMBooks,
    OpenAIBooks,
    Reconciliation,
    book,
    open_books,
    reconcile,
)

DAY, NEXT = date(2026, 11, 1), date(2026, 11, 2)
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
MIDNIGHT = 1793491200
KEY = "sk-admin-not-to-be-seen"


class Kept:
    """A ledger, and calls into it."""

    def __init__(self, folder: Path) -> None:
        self.now = NOON
        self.engine = BudgetEngine.open(
            "memory://", {}, clock=lambda: self.now, ledger=f"sqlite:///{folder / 'ledger.db'}"
        )

    def call(self, model: str, cost: str | None, inputs: int = 1000, outputs: int = 100, cached: int = 0) -> None:
        held = self.engine.reserve(Call(model=model, tenant="acme", amount=cost or "0.50"))
        used = Usage(input_tokens=inputs, output_tokens=outputs, cached_input_tokens=cached)
        self.engine.settle(held, **({"cost": cost, "usage": used} if cost else {}))

    def against(self, books: Any, **more: Any) -> Reconciliation:
        self.engine.flush()
        more.setdefault("now", NOON + timedelta(days=10))
        return reconcile(self.engine.ledger, books, more.pop("since", DAY), more.pop("until", NEXT), **more)


class Written:
    """Books as a list of lines."""

    def __init__(self, *lines: Billed, provider: str | None = None) -> None:
        self.provider = provider
        self._lines = lines

    def lines(self, since: date, until: date) -> Iterable[Billed]:
        return [line for line in self._lines if since <= line.day < until]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.engine.close()


@pytest.fixture
def server() -> Iterator[BooksServer]:
    with BooksServer() as started:
        yield started


def found(result: Reconciliation) -> list[tuple[Any, ...]]:
    return [(line.model, line.ledger, line.billed, line.flagged) for line in result.lines]


def test_five_per_cent_is_tolerated_and_more_is_flagged(kept: Kept) -> None:
    kept.call("gpt-4o", "0.95")
    kept.call("gpt-4o-mini", "0.949")
    result = kept.against(Written(Billed(DAY, "gpt-4o", Decimal(1)), Billed(DAY, "gpt-4o-mini", Decimal(1))))
    assert found(result) == [("gpt-4o", Decimal("0.95"), 1, False), ("gpt-4o-mini", Decimal("0.949"), 1, True)]
    assert result.flagged == (result.lines[1],)
    assert (result.lines[1].difference, result.lines[1].share) == (Decimal("0.051"), Decimal("0.051"))
    assert kept.against(Written(Billed(DAY, "gpt-4o", Decimal(1))), tolerance=Decimal("0.01")).flagged


def test_days_are_utc_and_names_meet_without_provider_and_date(kept: Kept) -> None:
    kept.now = datetime(2026, 11, 1, 23, 59, 59, tzinfo=UTC)
    kept.call("openai/gpt-4o-mini", "0.10")
    kept.now = datetime(2026, 11, 2, 0, 0, tzinfo=UTC)
    kept.call("gpt-4o-mini-2024-07-18", "0.20")
    billed = (Billed(DAY, "gpt-4o-mini-2024-07-18", Decimal("0.1")), Billed(NEXT, "GPT-4o-mini", Decimal("0.2")))
    result = kept.against(Written(*billed), until=date(2026, 11, 3))
    assert [(line.day, line.model, line.flagged) for line in result.lines] == [
        (DAY, "gpt-4o-mini", False),
        (NEXT, "gpt-4o-mini", False),
    ]


def test_an_alias_is_the_model_it_stands_for_and_mini_is_another(kept: Kept) -> None:
    kept.call("prod-chat", "0.10")
    prices = PriceBook(aliases={"prod-chat": "gpt-4o"})
    books = Written(Billed(DAY, "gpt-4o", Decimal("0.1")), Billed(DAY, "gpt-4o-mini", Decimal("0.1")))
    assert [line.model for line in kept.against(books, prices=prices).flagged] == ["gpt-4o-mini"]


CAUSES: list[tuple[str, list[tuple[Any, ...]], Billed, str]] = [
    ("unseen", [], Billed(DAY, "gpt-4o", Decimal(1), 5), "calls the ledger never saw"),
    (
        "some unseen", [("0.10",)] * 3, Billed(DAY, "gpt-4o", Decimal("0.5"), 5, 5000, 0, 500),
        "calls the ledger never saw: 2 of 5",
    ),
    (
        "tokens unseen", [("0.10",)], Billed(DAY, "gpt-4o", Decimal("0.5"), None, 5000, 0, 500),
        "use the ledger never saw",
    ),
    ("not theirs", [("0.10",)], Billed(DAY, "gpt-4o", Decimal(0)), "the provider has no such calls: another account"),
    (
        "unknown", [("0.10",), (None,)], Billed(DAY, "gpt-4o", Decimal("0.2"), 2),
        "unknown outcomes, charged at their estimate",
    ),
    (
        "cached", [("0.10", 1000, 100, 0)], Billed(DAY, "gpt-4o", Decimal("0.05"), 1, 1000, 800, 100),
        "cached tokens: the sides count them differently",
    ),
    (
        "batch", [("0.10",)], Billed(DAY, "gpt-4o", Decimal("0.05"), 1, 1000, 0, 100, True),
        "batch: the provider billed some of it at the lower rate",
    ),
    (
        "price", [("0.10",)], Billed(DAY, "gpt-4o", Decimal("0.12"), 1, 1000, 0, 100),
        "price drift: the same tokens at other prices",
    ),
    ("else", [("0.10",)], Billed(DAY, "gpt-4o", Decimal("0.12")), "not known"),
]  # fmt: skip


@pytest.mark.parametrize(("calls", "billed", "cause"), [case[1:] for case in CAUSES], ids=[case[0] for case in CAUSES])
def test_a_difference_has_its_likely_cause(kept: Kept, calls: list[Any], billed: Billed, cause: str) -> None:
    for call in calls:
        kept.call("gpt-4o", *call)
    (line,) = kept.against(Written(billed)).flagged
    assert line.cause.startswith(cause)


def test_a_late_settle_is_no_unknown_outcome_any_more(kept: Kept) -> None:
    held = kept.engine.reserve(Call(model="gpt-4o", amount="0.50"))
    kept.engine.settle(held)
    kept.engine.settle(held, cost="0.40", usage=Usage(input_tokens=10, output_tokens=1))
    (line,) = kept.against(Written(Billed(DAY, "gpt-4o", Decimal("0.2"), 1, 10, 0, 1))).flagged
    assert (line.ledger, line.cause) == (Decimal("0.4"), "price drift: the same tokens at other prices")


def test_a_day_that_may_still_grow_is_shown_and_not_flagged(kept: Kept) -> None:
    kept.call("gpt-4o", "0.10")
    books = Written(Billed(DAY, "gpt-4o", Decimal("0.02")))
    (line,) = kept.against(books, now=datetime(2026, 11, 2, 5, 59, tzinfo=UTC)).lines
    assert (line.flagged, line.final, line.cause) == (False, False, "the day may still grow")
    assert kept.against(books, now=datetime(2026, 11, 2, 6, 0, tzinfo=UTC)).flagged


def test_books_of_one_provider_say_nothing_of_others(kept: Kept) -> None:
    kept.call("claude-sonnet-4-5-20250929", "0.10")
    kept.call("gpt-4o", "0.10")
    assert [line.model for line in kept.against(Written(provider="openai")).lines] == ["gpt-4o"]
    assert [line.model for line in kept.against(Written(provider="anthropic")).lines] == ["claude-sonnet-4-5"]
    assert len(kept.against(Written()).lines) == 2


def test_calls_of_the_same_model_through_another_provider_are_not_on_its_bill(kept: Kept) -> None:
    kept.call("gpt-4o", "0.10")
    kept.call("azure/gpt-4o", "0.30")
    kept.call("claude-sonnet-4-5", "0.20")
    kept.call("vertex_ai/claude-sonnet-4-5@20250929", "0.40")
    kept.call("gpt-4o-of-nobody", "0.50")
    openai = Written(Billed(DAY, "gpt-4o-2024-08-06", Decimal("0.1")), provider="openai")
    assert found(kept.against(openai)) == [("gpt-4o", Decimal("0.1"), Decimal("0.1"), False)]
    anthropic = Written(Billed(DAY, "claude-sonnet-4-5-20250929", Decimal("0.2")), provider="anthropic")
    assert [line[1:] for line in found(kept.against(anthropic))] == [(Decimal("0.2"), Decimal("0.2"), False)]


def test_a_correction_that_cannot_be_keeps_the_others_from_being_booked(tmp_path: Path) -> None:
    rules = {"budgets": [{"name": "all", "scope": "global", "limit": "$50", "window": "day"}]}
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    with BudgetEngine.open("memory://", rules, ledger=ledger, clock=lambda: NOON) as engine:
        engine.charge(Call(model="claude-sonnet-4-5"), cost="0.50")
        engine.flush()
        books = Written(Billed(DAY, "claude-sonnet-4-5", Decimal(1)), Billed(DAY, "gpt-4o", Decimal(99_999_999)))
        result = reconcile(engine.ledger, books, DAY, NEXT, now=NOON + timedelta(days=10))
        assert len(result.flagged) == 2
        with pytest.raises(ConfigurationError, match=r"gpt-4o: .* nothing is booked"):
            book(engine, result)
        assert [status.spent for status in engine.status()] == [Decimal("0.5")]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.csv", "", "no row of 2026-11-01"),
        ("x.csv", "date,model,cost\n", "no row of 2026-11-01"),
        ("x.csv", "a\0b,model,cost\n", "no row of 2026-11-01"),
        ("x.csv", "date,model,cost\n2026-10-31,gpt-4o,1\n", "no row of 2026-11-01"),
        ("x.json", "[]", "no row of 2026-11-01"),
        ("x.json", "[" * 100_000, "neither"),
        ("x.csv", 'date,model,cost\n2026-11-01,gpt-4o,"1.234,56"\n', "comma"),
        ("x.csv", "date,model,cost\n2026-11-01,gpt-4o," + "1" * 140_000, "no CSV"),
        ("x.json", '[{"date":"2026-11-01","model":"m","cost":1,"requests":{"a":1}}]', "row 1: requests: a value of"),
    ],
)
def test_an_export_that_is_cut_short_is_no_bill_of_nothing(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=says):
        list(ExportedBooks(tmp_path / name).lines(DAY, NEXT))


def test_a_span_without_a_day_is_a_mistake(kept: Kept) -> None:
    with pytest.raises(ConfigurationError, match="span"):
        kept.against(Written(), until=DAY)


CSV = """\
date,model,cost_usd,num_model_requests,input_tokens,input_cached_tokens,output_tokens,batch
2026-11-01,gpt-4o-2024-08-06,$0.10,1,1000,0,100,false
2026-11-01T13:00:00+00:00,gpt-4o-2024-08-06,0.05,1,1000,0,100,true
1793491200,gpt-4o-mini,"1,000.5",,,,,
2026-11-09,gpt-4o,7,,,,,
"""


def test_a_csv_file_is_read_with_the_columns_of_usual_exports(tmp_path: Path) -> None:
    path = tmp_path / "usage.csv"
    path.write_text("\ufeff" + CSV, encoding="utf-8")
    assert list(ExportedBooks(path).lines(DAY, NEXT)) == [
        Billed(DAY, "gpt-4o-2024-08-06", Decimal("0.10"), 1, 1000, 0, 100),
        Billed(DAY, "gpt-4o-2024-08-06", Decimal("0.05"), 1, 1000, 0, 100, True),
        Billed(DAY, "gpt-4o-mini", Decimal("1000.5")),
    ]


def test_a_json_file_keeps_every_digit(tmp_path: Path) -> None:
    path = tmp_path / "usage.json"
    path.write_text('{"data": [{"day": "2026-11-01", "model": "m", "cost": 0.12345678901234567890}]}')
    (line,) = ExportedBooks(path).lines(DAY, NEXT)
    assert line.cost == Decimal("0.12345678901234567890")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "date,model,cost\n2026-11-01,,1\n", "row 1: it names no model"),
        ("a.csv", "date,model,cost\n2026-11-01,m,1\n2026-11-01,m,\n", "row 2: it names no cost"),
        ("a.csv", "model,cost\nm,1\n", "row 1: it names no day"),
        ("a.csv", "date,model,cost\n2026-11-01,m,NaN\n", "row 1: 'NaN' is no amount of dollars$"),
        ("a.csv", "date,model,cost\n2026-11-01,m,cheap\n", "row 1: 'cheap' is no amount of dollars$"),
        ("a.csv", "date,model,cost\n2026-11-01,m,1e30\n", "row 1: '1e30' is no amount of dollars$"),
        ("a.csv", "date,model,cost\nyesterday,m,1\n", "row 1: 'yesterday' is no day or instant, such as 2026-11-30$"),
        ("a.csv", "date,model,cost\n9999-12-31T23:59:59-23:59,m,1\n", "row 1: .* is no day or instant"),
        ("a.csv", "date,model,cost,calls\n2026-11-01,m,1,many\n", "row 1: requests: 'many' is no count$"),
        ("a.csv", "date,model,cost,calls\n2026-11-01,m,1,1e99\n", "row 1: requests: '1e99' is no count$"),
        ("a.json", '[{"day":"2026-11-01","model":["m"],"cost":1}]', "row 1: a value of the type list is neither text"),
        ("a.json", "{", "neither .csv nor JSON"),
        ("a.json", '{"rows": 1}', "no list of objects"),
    ],
)
def test_a_file_that_cannot_be_meant_is_a_mistake_with_its_place(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=said):
        list(ExportedBooks(tmp_path / name).lines(DAY, NEXT))


def test_openais_costs_and_usage_are_read_page_by_page(server: BooksServer, kept: Kept) -> None:
    costs = [
        openai_bucket(
            MIDNIGHT, openai_cost("gpt-4o-2024-08-06, input", 0.07), openai_cost("gpt-4o-2024-08-06, output", 0.03)
        ),
        openai_bucket(MIDNIGHT + 86400, openai_cost("gpt-4o-mini-2024-07-18, input", 0.01)),
    ]  # fmt: skip
    used = [openai_usage("gpt-4o-2024-08-06", 1, 1000, 100), openai_usage("gpt-4o-2024-08-06", 1, 10, 1, 5, True)]
    server.routes = {
        "/v1/organization/costs": paged(costs),
        "/v1/organization/usage/completions": paged([openai_bucket(MIDNIGHT, *used), openai_bucket(MIDNIGHT + 86400)]),
        "/v1/organization/usage/embeddings": paged([openai_bucket(MIDNIGHT)]),
    }
    kept.call("gpt-4o", "0.10")
    result = kept.against(OpenAIBooks(KEY, server.url), until=date(2026, 11, 3))
    assert found(result) == [
        ("gpt-4o", Decimal("0.1"), Decimal("0.1"), False),
        ("gpt-4o-mini", 0, Decimal("0.01"), True),
    ]
    path, query, headers = server.requests[0]
    assert (path, query["start_time"], query["end_time"]) == (
        "/v1/organization/costs", [str(MIDNIGHT)], [str(MIDNIGHT + 2 * 86400)],
    )  # fmt: skip
    assert (query["bucket_width"], query["group_by"]) == (["1d"], ["line_item"])
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert [query.get("page") for path, query, _ in server.requests if path.endswith("costs")] == [None, ["page_1"]]
    assert server.requests[2][1]["group_by"] == ["model", "batch"]


def test_anthropics_reports_are_cents_and_cached_lines_add_up(server: BooksServer, kept: Kept) -> None:
    model = "claude-sonnet-4-5-20250929"
    server.routes = {
        "/v1/organizations/cost_report": paged([
            anthropic_bucket("2026-11-01", anthropic_cost(model, "123.45"), anthropic_cost(model, "0.5", "batch")),
            anthropic_bucket("2026-11-02", anthropic_cost(None, "10")),
        ]),
        "/v1/organizations/usage_report/messages": paged([
            anthropic_bucket("2026-11-01", anthropic_usage(model, 100, 800, 50, 90)),
            anthropic_bucket("2026-11-01", anthropic_usage(model, 10, 0, 0, 9, "batch")),
        ]),
    }  # fmt: skip
    lines = list(AnthropicBooks(KEY, server.url).lines(DAY, date(2026, 11, 3)))
    assert lines == [
        Billed(DAY, model, Decimal("1.2345")),
        Billed(DAY, model, Decimal("0.005"), batch=True),
        Billed(NEXT, "Web Search Usage", Decimal("0.1")),
        Billed(DAY, model, None, None, 950, 800, 90),
        Billed(DAY, model, None, None, 10, 0, 9, True),
    ]
    kept.call("anthropic/claude-sonnet-4-5", "1.2", 950, 90, 0)
    kept.call("anthropic/claude-sonnet-4-5", "0.9", 10, 9, 0)
    flagged = kept.against(AnthropicBooks(KEY, server.url)).flagged
    assert [(line.model, line.cause) for line in flagged] == [
        ("claude-sonnet-4-5", "cached tokens: the sides count them differently")
    ]
    _, query, headers = server.requests[0]
    assert (headers["X-Api-Key"], headers["Anthropic-Version"]) == (KEY, "2023-06-01")
    assert (query["starting_at"], query["group_by[]"]) == (["2026-11-01T00:00:00Z"], ["description"])


def test_the_spend_logs_of_a_litellm_proxy_are_read_page_by_page(server: BooksServer, kept: Kept) -> None:
    rows = [
        {"model": "openai/gpt-4o", "spend": 0.25, "prompt_tokens": 1000, "completion_tokens": 100, "status": "success",
         "startTime": "2026-11-01T10:00:00Z"},
        {"model": "gpt-4o", "spend": 0.0, "prompt_tokens": 0, "completion_tokens": 0, "status": "failure",
         "startTime": "2026-11-01T10:00:00Z"},
        {"model": "gpt-4o", "spend": 0.05, "prompt_tokens": 10, "completion_tokens": 1, "status": "success",
         "startTime": "2026-11-01T10:00:00.123000+00:00"},
    ]  # fmt: skip

    def logs(query: dict[str, list[str]]) -> dict[str, Any]:
        at = int(query["page"][0]) - 1
        return {"data": rows[at : at + 1], "total": 3, "page": at + 1, "page_size": 1, "total_pages": 3}

    server.routes = {"/spend/logs/v2": logs}
    kept.call("gpt-4o", "0.05", 10, 1)
    (line,) = kept.against(LiteLLMBooks(KEY, server.url)).flagged
    assert (line.billed, line.cause) == (Decimal("0.3"), "calls the ledger never saw: 1 of 2")
    assert server.requests[0][1]["start_date"] == ["2026-11-01 00:00:00"]
    assert server.requests[0][1]["end_date"] == ["2026-11-01 23:59:59"]


@pytest.mark.parametrize("status", [302, 401, 429, 500])
def test_a_refusal_of_the_provider_is_an_error_without_the_key(server: BooksServer, status: int) -> None:
    server.routes = {"/v1/organization/costs": lambda _: {}, "/elsewhere": lambda _: {}}
    server.status = status
    books = OpenAIBooks(KEY, server.url)
    with pytest.raises(BooksUnavailable, match=f"HTTP {status}") as raised:
        list(books.lines(DAY, NEXT))
    assert KEY not in f"{raised.value!r} {books!r} {raised.value.__context__!r}"
    assert [path for path, *_ in server.requests] == ["/v1/organization/costs"]


@pytest.mark.parametrize("answer", [b"<html>", [], {"data": [{"results": [{"amount": None}]}]}, {"data": 5}, {}])
def test_an_answer_in_another_form_is_an_error_and_not_nothing(server: BooksServer, answer: Any) -> None:
    server.routes = {"/v1/organization/costs": lambda _: answer}
    with pytest.raises(BooksUnavailable, match=r"not known|could not be read"):
        list(OpenAIBooks(KEY, server.url).lines(DAY, NEXT))


@pytest.mark.parametrize(
    "answer",
    [
        {"data": [None], "total_pages": 1}, {"data": 7, "total_pages": 1}, {"data": [], "total_pages": "x"},
        {"data": {"a": 1}, "total_pages": 1}, {"data": [{"startTime": "2026-11-01", "model": ["m"]}]},
        {"error": "no such key"},
    ],
)  # fmt: skip
def test_spend_logs_in_another_form_are_an_error(server: BooksServer, answer: Any) -> None:
    server.routes = {"/spend/logs/v2": lambda _: answer}
    with pytest.raises(BooksUnavailable, match="not known"):
        list(LiteLLMBooks(KEY, server.url).lines(DAY, NEXT))


def test_a_page_that_comes_again_is_an_error_and_not_counted_for_ever(server: BooksServer) -> None:
    server.routes = {"/v1/organization/costs": lambda _: {"data": [], "has_more": True, "next_page": "p"}}
    with pytest.raises(BooksUnavailable, match="same page again"):
        list(OpenAIBooks(KEY, server.url).lines(DAY, NEXT))
    assert len(server.requests) == 2


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from(["2026-11-01", "9999-12-31T23:59:59-23:59", "1e999999", "-1", "gpt-4o", MIDNIGHT, 10**400]),
)  # fmt: skip
NAMES = st.sampled_from(
    [
        "data", "results", "has_more", "next_page", "start_time", "starting_at", "startTime", "line_item", "amount",
        "value", "model", "description", "input_tokens", "cache_creation", "spend", "status", "batch", "service_tier",
        "day", "cost", "requests", "num_model_requests", "uncached_input_tokens", "prompt_tokens",
    ]
)  # fmt: skip
TABLES = st.recursive(
    ODD, lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(NAMES, inner, max_size=8)), max_leaves=12
)
ROWS = st.fixed_dictionaries(
    dict.fromkeys(("start_time", "starting_at", "startTime", "day"), st.one_of(st.just("2026-11-01"), ODD)),
    optional=dict.fromkeys(("model", "cost", "spend", "amount", "line_item", "results", "requests"), TABLES),
)
ANSWERS = st.one_of(
    TABLES,
    st.fixed_dictionaries(
        {"data": st.one_of(TABLES, st.lists(ROWS, max_size=2))},
        optional={"total_pages": st.one_of(st.sampled_from([0, 1, 2, "x", None, -1, 1.5]), st.text(max_size=2)),
                  "has_more": ODD, "next_page": ODD},
    ),
)  # fmt: skip


SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(answer=ANSWERS)
def test_no_answer_and_no_file_makes_anything_but_an_error_of_this_package(
    server: BooksServer, kept: Kept, tmp_path: Path, answer: Any
) -> None:
    (tmp_path / "x.json").write_text(json.dumps(answer))
    server.routes = defaultdict(lambda: lambda _: answer)
    hosts = (OpenAIBooks(KEY, server.url), AnthropicBooks(KEY, server.url), LiteLLMBooks(KEY, server.url))
    for books in (*hosts, ExportedBooks(tmp_path / "x.json")):
        with contextlib.suppress(BudgetError):
            kept.against(books)


def test_books_that_cannot_be_reached_are_an_error() -> None:
    with pytest.raises(BooksUnavailable, match=r"127\.0\.0\.1"):
        list(AnthropicBooks(KEY, "http://127.0.0.1:1").lines(DAY, NEXT))


def test_keys_come_from_the_environment(monkeypatch: Any, tmp_path: Path) -> None:
    for name in ("OPENAI_ADMIN_KEY", "ANTHROPIC_ADMIN_KEY", "LITELLM_PROXY_API_KEY", "LITELLM_PROXY_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    for source in ("openai", "anthropic", "litellm"):
        with pytest.raises(ConfigurationError, match="is not set"):
            open_books(source)
    monkeypatch.setenv("OPENAI_ADMIN_KEY", KEY)
    assert repr(open_books("openai")) == "OpenAIBooks('api.openai.com')"
    with pytest.raises(ConfigurationError, match="neither"):
        open_books("no-such.csv")
    (tmp_path / "x.json").write_text(json.dumps([]))
    for named, provider in (("openai", "openai"), ("google_genai", "gemini"), ("bedrock_converse", "bedrock")):
        assert open_books(str(tmp_path / "x.json"), provider=named).provider == provider


def test_corrections_are_seen_by_limits_and_by_the_next_comparison(tmp_path: Path) -> None:
    now = [NOON]
    rules = {"budgets": [
        {"name": "all", "scope": "global", "limit": "$1", "window": "month"},
        {"name": "acme", "scope": "tenant", "limit": "$10", "window": "month"},
    ]}  # fmt: skip
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    with BudgetEngine.open("memory://", rules, clock=lambda: now[0], ledger=ledger) as engine:
        engine.charge(Call(model="gpt-4o", tenant="acme"), cost="0.40")
        engine.charge(Call(model="gpt-4o-mini", tenant="acme"), cost="0.30")
        engine.flush()
        now[0] += timedelta(days=2)
        books = Written(Billed(DAY, "gpt-4o", Decimal("0.75")), Billed(DAY, "gpt-4o-mini", Decimal("0.20")))
        found = reconcile(engine.ledger, books, DAY, NEXT, now=now[0])
        assert book(engine, found, by="me") == Decimal("0.25")
        assert [line.spent for line in engine.status(tenant="acme")] == [Decimal("0.95"), Decimal("0.7")]
        with pytest.raises(BudgetExceeded):
            engine.reserve(Call(model="gpt-4o", amount="0.10"))
        rows = engine.ledger.adjustments().items
        assert [(row.booked_nusd, row.by, row.reason) for row in reversed(rows)] == [
            (350_000_000, "me", "reconcile 2026-11-01 gpt-4o: not known"),
            (-100_000_000, "me", "reconcile 2026-11-01 gpt-4o-mini: not known"),
        ]
        again = reconcile(engine.ledger, books, DAY, NEXT, now=now[0])
        assert (again.flagged, [line.ledger for line in again.lines]) == ((), [Decimal("0.75"), Decimal("0.2")])
        assert book(engine, again) == 0


def test_corrections_of_a_tenant_reach_its_budgets(tmp_path: Path) -> None:
    rules = {"budgets": [{"name": "acme", "scope": "tenant", "limit": "$10", "window": "month"}]}
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    with BudgetEngine.open("memory://", rules, ledger=ledger, clock=lambda: NOON) as engine:
        found = reconcile(engine.ledger, Written(Billed(DAY, "gpt-4o", Decimal("0.75"))), DAY, NEXT)
        with pytest.raises(ConfigurationError, match="name the tenant"):
            book(engine, found)
        book(engine, found, tenant="acme")
        assert engine.status(tenant="acme")[0].spent == Decimal("0.75")
    with BudgetEngine.open("memory://", rules) as without, pytest.raises(ConfigurationError, match="ledger"):
        book(without, found, tenant="acme")
