"""Books as files and at hosts: what is read of them, and what is no bill."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from datetime import date
from decimal import Decimal
from pathlib import Path
from random import shuffle
from typing import Any

import pytest
from books_server import (
    BooksServer,
    anthropic_bucket,
    anthropic_cost,
    anthropic_tool,
    anthropic_usage,
    openai_bucket,
    openai_cost,
    openai_usage,
    paged,
    spend_logs,
    spend_row,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledgers import DAY, NEXT, Kept, found

from llm_budget_hooks import BudgetError, Call, Usage
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.reconcile import (
    AnthropicBooks,
    Billed,
    BooksUnavailable,
    ExportedBooks,
    LiteLLMBooks,
    OpenAIBooks,
    open_books,
)

MIDNIGHT = 1793491200
KEY = "sk-admin-not-to-be-seen"


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
        ("a.csv", "date,model,cost\n2026-11-01,m,1,500.00\n", "row 1: it has more values than the head has names"),
        (
            "a.csv",
            "start_time,end_time,model,cost\n2026-11-01,2026-11-07,m,60\n",
            "row 1: it is about more than one UTC day",
        ),
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
            anthropic_bucket("2026-11-02", anthropic_tool("web_search", "10")),
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
        Billed(NEXT, "web search", Decimal("0.1"), tool=True),
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
        spend_row(1, "2026-11-01T10:00:00+00:00", 0.25, model="openai/gpt-4o"),
        spend_row(2, "2026-11-01T10:00:00+00:00", 0.0, status="failure", prompt_tokens=0, completion_tokens=0),
        spend_row(3, "2026-11-01T23:59:59.900000+00:00", 0.05),
        spend_row(4, "2026-11-02T00:00:00+00:00", 0.40),
    ]
    server.routes = {"/spend/logs/v2": spend_logs(rows, page_size=1)}
    kept.call("gpt-4o", "0.05", 10, 1)
    (line,) = kept.against(LiteLLMBooks(KEY, server.url)).flagged
    assert (line.billed, line.cause) == (Decimal("0.3"), "calls the ledger never saw: 1 of 2")
    both = list(LiteLLMBooks(KEY, server.url).lines(DAY, date(2026, 11, 3)))
    assert [(line.day, line.cost) for line in both] == [
        (DAY, Decimal("0.25")), (DAY, Decimal("0.05")), (NEXT, Decimal("0.4")),
    ]  # fmt: skip


def test_spend_logs_are_read_beyond_the_rows_that_the_proxy_counts(server: BooksServer) -> None:
    rows = [spend_row(n, f"2026-11-01T{n % 24:02}:00:{n % 60:02}+00:00", 0.01) for n in range(50)]
    server.routes = {"/spend/logs/v2": spend_logs(rows, most=10, page_size=5)}
    assert sum(line.cost or 0 for line in LiteLLMBooks(KEY, server.url).lines(DAY, NEXT)) == Decimal("0.5")


def test_rows_of_one_instant_are_in_no_order_and_each_is_read_once(server: BooksServer) -> None:
    rows = [spend_row(n, f"2026-11-01T10:00:{n // 2:02}+00:00", 0.01 * n) for n in range(16)]

    def logs(query: dict[str, list[str]]) -> dict[str, Any]:
        shuffle(rows)
        return spend_logs(rows, page_size=5)(query)

    server.routes = {"/spend/logs/v2": logs}
    assert sum(line.cost or 0 for line in LiteLLMBooks(KEY, server.url).lines(DAY, NEXT)) == Decimal("1.2")


def test_more_calls_in_a_second_than_can_be_read_are_an_error(server: BooksServer) -> None:
    rows = [spend_row(n, "2026-11-01T10:00:00+00:00", 0.01) for n in range(12)]
    pages = iter([[0, 5], [3, 8], [5, 10], [0, 0]])

    def logs(query: dict[str, list[str]]) -> dict[str, Any]:
        answer: dict[str, Any] = spend_logs(rows, page_size=5)(query)
        if query["start_date"] == ["2026-11-01 10:00:00"] and query["end_date"] == ["2026-11-01 10:00:01"]:
            answer["data"] = rows[slice(*next(pages))]
        return answer

    server.routes = {"/spend/logs/v2": logs}
    with pytest.raises(BooksUnavailable, match="too many calls began at 10:00:00"):
        list(LiteLLMBooks(KEY, server.url).lines(DAY, NEXT))


@pytest.mark.parametrize("rows", [[], [spend_row(1, "2026-11-01T10:00:00+00:00", 0.01)]])
def test_a_proxy_that_always_has_another_page_is_an_error_and_not_asked_for_each_second(
    server: BooksServer, rows: list[Any]
) -> None:
    server.routes = {"/spend/logs/v2": lambda _: {"data": rows, "total_pages": 2}}
    with pytest.raises(BooksUnavailable, match="other rows than those"):
        list(LiteLLMBooks(KEY, server.url).lines(DAY, NEXT))
    assert len(server.requests) < 20


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


@pytest.mark.parametrize("named", [{}, {"next_page": None}, {"next_page": ""}])
def test_a_page_that_is_said_to_follow_and_is_not_named_is_an_error(server: BooksServer, named: Any) -> None:
    server.routes = defaultdict(lambda: lambda _: {"data": [], "has_more": True, **named})
    with pytest.raises(BooksUnavailable, match="does not name it"):
        list(OpenAIBooks(KEY, server.url).lines(DAY, NEXT))


def test_a_row_of_one_day_may_say_where_it_ends(tmp_path: Path) -> None:
    head = "start_time,end_time,model,cost\n"
    for begins, ends in (("2026-11-01", "2026-11-01"), ("2026-11-01", "2026-11-02"), ("1793491200", "1793577600")):
        (tmp_path / "a.csv").write_text(f"{head}{begins},{ends},m,1\n", encoding="utf-8")
        (line,) = ExportedBooks(tmp_path / "a.csv").lines(DAY, NEXT)
        assert (line.day, line.cost) == (DAY, 1)


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


def test_tools_that_are_billed_apart_are_compared_with_what_all_models_paid_for_them(
    server: BooksServer, kept: Kept
) -> None:
    model = "claude-sonnet-4-5-20250929"
    for searches in (2, 0, 1):
        held = kept.engine.reserve(Call(model=f"anthropic/{model}", amount="0.50"))
        kept.engine.settle(held, usage=Usage(input_tokens=1000, output_tokens=100, searches=searches))

    def billed(*tools: Any) -> AnthropicBooks:
        day = anthropic_bucket("2026-11-01", anthropic_cost(model, "1.35"), *tools)
        server.routes["/v1/organizations/cost_report"] = paged([day])
        return AnthropicBooks(KEY, server.url)

    server.routes["/v1/organizations/usage_report/messages"] = paged([anthropic_bucket("2026-11-01")])
    assert found(kept.against(billed(anthropic_tool("web_search", "3")))) == [
        ("claude-sonnet-4-5", Decimal("0.0135"), Decimal("0.0135"), False),
        ("web search", Decimal("0.03"), Decimal("0.03"), False),
    ]
    flagged = kept.against(billed(anthropic_tool("web_search", "6"), anthropic_tool("code_execution", "5"))).flagged
    assert [(line.model, line.difference, line.cause) for line in flagged] == [
        ("code execution", Decimal("0.05"), "use the ledger never saw"),
        ("web search", Decimal("0.03"), "not known"),
    ]


def test_openais_tools_are_told_by_their_line_items(server: BooksServer) -> None:
    items = [
        "gpt-4o-2024-08-06, output",
        "web search tool calls",
        "File Search Tool Calls",
        "Code Interpreter Sessions",
    ]
    costs = [openai_bucket(MIDNIGHT, *(openai_cost(item, 0.01) for item in items))]
    nothing = paged([openai_bucket(MIDNIGHT)])
    server.routes = defaultdict(lambda: nothing, {"/v1/organization/costs": paged(costs)})
    assert [(line.model, line.tool) for line in OpenAIBooks(KEY, server.url).lines(DAY, NEXT)] == [
        ("gpt-4o-2024-08-06", False), ("web search", True), ("file search", True), ("code execution", True),
    ]  # fmt: skip


def test_a_tool_in_an_exported_file_needs_no_model(tmp_path: Path) -> None:
    path = tmp_path / "cost.csv"
    path.write_text("usage_date_utc,model,cost_type,cost_usd\n2026-11-01,,web_search,0.02\n2026-11-01,m,tokens,1\n")
    assert list(ExportedBooks(path).lines(DAY, NEXT)) == [
        Billed(DAY, "web search", Decimal("0.02"), tool=True),
        Billed(DAY, "m", Decimal(1)),
    ]


COSTS = """\
start_time,end_time,start_time_iso,end_time_iso,amount_value,amount_currency,line_item,project_id,organization_id
1793491200,1793577600,2026-11-01T00:00:00+00:00,2026-11-02T00:00:00+00:00,0.07,usd,"gpt-4o-2024-08-06, input",,org
1793491200,1793577600,2026-11-01T00:00:00+00:00,2026-11-02T00:00:00+00:00,0.02,usd,"gpt-4o-2024-08-06, cached",,org
1793491200,1793577600,2026-11-01T00:00:00+00:00,2026-11-02T00:00:00+00:00,0.01,USD,web search tool calls,,org
1793577600,1793664000,2026-11-02T00:00:00+00:00,2026-11-03T00:00:00+00:00,,,,,org
"""


def test_openais_exported_costs_are_read_by_line_item_and_a_day_without_costs_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "cost.csv"
    path.write_text(COSTS)
    assert list(ExportedBooks(path, "openai").lines(DAY, date(2026, 11, 3))) == [
        Billed(DAY, "gpt-4o-2024-08-06", Decimal("0.07")),
        Billed(DAY, "gpt-4o-2024-08-06", Decimal("0.02")),
        Billed(DAY, "web search", Decimal("0.01"), tool=True),
    ]


@pytest.mark.parametrize(
    ("head", "cost", "currency"),
    [("amount,amount_currency", "1", "eur"), ("cost,currency", "1", "JPY"), ("cost,billingCurrency", "1", "GBP")],
)
def test_amounts_in_another_currency_are_refused_by_its_name(
    tmp_path: Path, head: str, cost: str, currency: str
) -> None:
    (tmp_path / "a.csv").write_text(f"date,model,{head}\n2026-11-01,m,{cost},{currency}\n")
    with pytest.raises(ConfigurationError, match=f"row 1: an amount in '{currency}'"):
        list(ExportedBooks(tmp_path / "a.csv").lines(DAY, NEXT))


def test_an_amount_with_the_sign_of_another_currency_is_refused(tmp_path: Path) -> None:
    for cost in ("€5", "5 EUR", "5 €", "£5"):
        (tmp_path / "a.csv").write_text(f"date,model,cost\n2026-11-01,m,{cost}\n", encoding="utf-8")
        with pytest.raises(ConfigurationError, match=f"row 1: '{cost}' is no amount of dollars"):
            list(ExportedBooks(tmp_path / "a.csv").lines(DAY, NEXT))


def test_a_provider_that_bills_in_another_currency_is_refused_by_its_name(server: BooksServer) -> None:
    cost = openai_cost("gpt-4o", 1) | {"amount": {"value": 1, "currency": "eur"}}
    server.routes = {"/v1/organization/costs": paged([openai_bucket(MIDNIGHT, cost)])}
    with pytest.raises(BooksUnavailable, match="an amount in 'eur'"):
        list(OpenAIBooks(KEY, server.url).lines(DAY, NEXT))
    report = anthropic_bucket("2026-11-01", anthropic_cost("claude-sonnet-4-5", "1") | {"currency": "CHF"})
    server.routes = {"/v1/organizations/cost_report": paged([report])}
    with pytest.raises(BooksUnavailable, match="an amount in 'CHF'"):
        list(AnthropicBooks(KEY, server.url).lines(DAY, NEXT))
