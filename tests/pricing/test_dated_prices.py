"""Prices that change with the day and the hour, and that are not for tokens."""

from __future__ import annotations

import copy
import pickle
import tomllib
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.errors import ConfigurationError, PriceUnknown
from llm_budget_hooks.models import Policy, Usage
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.pricing import PriceBook, second, source
from llm_budget_hooks.pricing.hours import hours_of

MILLION = Usage(input_tokens=10**6)
CHANGED = tomllib.loads("""
[prices."x"]
input = "$3"
output = "$15"

[[prices."x".changes]]
from = 2026-12-01
input = "$2"
output = "$10"
cached_input = "$0.20"

[[prices."x".changes]]
from = 2027-03-01T09:00:00+01:00
input = "$1"
output = "$5"
""")["prices"]


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def dollars(book: PriceBook, at: str, usage: Usage = MILLION) -> Decimal:
    return to_decimal(book.price("x", at_ms=ms(at)).cost_nusd(usage))


@pytest.mark.parametrize(
    ("at", "cost"),
    [
        ("2020-01-01T00:00Z", 3), ("2026-11-30T23:59:59.999Z", 3), ("2026-12-01T00:00Z", 2),
        ("2027-03-01T07:59:59Z", 2), ("2027-03-01T08:00Z", 1), ("2099-01-01T00:00Z", 1),
    ],
)  # fmt: skip
def test_a_price_is_the_one_of_its_instant(at: str, cost: int) -> None:
    assert dollars(PriceBook(CHANGED), at) == cost


def test_a_change_says_everything_anew() -> None:
    cached = Usage(input_tokens=10**6, cached_input_tokens=10**6)
    book = PriceBook(CHANGED)
    assert [dollars(book, at, cached) for at in ("2026-01-01T00:00Z", "2026-12-02T00:00Z", "2028-01-01T00:00Z")] == [
        3, Decimal("0.20"), 1,
    ]  # fmt: skip


@pytest.mark.parametrize("since", ["2020-01-01", "2099-01-01"])
def test_a_past_call_keeps_its_price(since: str) -> None:
    before = PriceBook({"x": {k: v for k, v in CHANGED["x"].items() if k != "changes"}})
    after = PriceBook({"x": {**CHANGED["x"], "changes": [{"from": since, "input": 7, "output": 7}]}})
    call = ms("2019-11-30T12:00Z")
    held = before.price("x", at_ms=call)
    now = after.price("x")
    assert to_decimal(now.cost_nusd(MILLION)) == (7 if since < "2026" else 3)
    assert after.served(now, None, at_ms=call).cost_nusd(MILLION) == held.cost_nusd(MILLION)
    assert after.served(now, "x", at_ms=call).cost_nusd(MILLION) == held.cost_nusd(MILLION)
    assert now.now(call).now() == now


def test_a_call_at_cheap_hours_is_booked_so_whether_or_not_the_answer_names_its_model() -> None:
    book = PriceBook()
    name = off_peak()[0]
    sunday = ms("2026-11-29T12:00Z")
    cheap = book.price(name, at_ms=sunday).cost_nusd(MILLION)
    engine = BudgetEngine.open("memory://", {}, clock=lambda: datetime.fromtimestamp(sunday / 1000, UTC))
    for served in (None, name):
        held = engine.reserve(Call(model=name, input_tokens=10, max_output_tokens=10))
        assert engine.settle(held, usage=MILLION, model=served).cost_nusd == cheap
    held = engine.reserve(Call(model=name, input_tokens=10, max_output_tokens=10))
    assert engine.settle(held.id, usage=MILLION).cost_nusd == cheap
    assert engine.charge(Call(model=name), usage=MILLION).cost_nusd == cheap
    engine.close()


def test_a_settle_by_id_keeps_the_price_of_its_reserve() -> None:
    long_ago = datetime(2019, 11, 30, 12, tzinfo=UTC)
    changed = {**CHANGED["x"], "changes": [{"from": "2020-01-01", "input": 7, "output": 7}]}
    policy = {"prices": {"x": changed}, "budgets": [{"scope": "global", "limit": "$100", "window": "day"}]}
    with BudgetEngine.open("memory://", policy, clock=lambda: long_ago) as engine:
        for named in (None, "x"):
            held = engine.reserve(Call(model="x", input_tokens=10, max_output_tokens=10))
            assert engine.settle(held.id, usage=MILLION, model=named).cost == 3


def test_without_an_instant_today_counts() -> None:
    book = PriceBook({"x": {**CHANGED["x"], "changes": [{"from": date(2020, 1, 1), "input": 7, "output": 7}]}})
    assert to_decimal(book.price("x").cost_nusd(MILLION)) == 7
    later = PriceBook({"x": {**CHANGED["x"], "changes": [{"from": "2099-01-01", "input": 7, "output": 7}]}})
    assert to_decimal(later.price("x").cost_nusd(MILLION)) == 3


def test_a_policy_with_dated_prices_travels() -> None:
    policy = Policy.model_validate({"prices": CHANGED})
    for twin in (policy, pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)):
        book = PriceBook(twin.prices)
        assert dollars(pickle.loads(pickle.dumps(book)), "2026-12-02T00:00Z") == 2


def test_a_model_that_becomes_dear_is_not_free() -> None:
    free: dict[str, Any] = {"input": 0, "output": 0}
    assert PriceBook({"x": free}).price("x").is_free
    later = {**free, "changes": [{"from": "2099-01-01", "input": 1, "output": 1}]}
    assert not PriceBook({"x": later}).price("x").is_free
    earlier = {"input": 1, "output": 1, "changes": [{"from": "2020-01-01", **free}]}
    assert PriceBook({"x": earlier}).price("x").is_free


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"from": "2026-12-01"}, r"\.changes is a list"),
        ([3], r"\.changes\[0\] is a table"),
        ([{"input": 1, "output": 1}], r"\.changes\[0\]\.from is a day or an instant"),
        ([{"from": "soon", "input": 1, "output": 1}], r"\.changes\[0\]\.from is a day or an instant"),
        ([{"from": 20261201, "input": 1, "output": 1}], r"\.changes\[0\]\.from is a day or an instant"),
        ([{"from": "2026-12-01", "input": 1}], r"\.changes\[0\] needs output"),
        ([{"from": "2026-12-01", "input": 1.5, "output": 1}], r"\.changes\[0\]\.input: 1\.5 \(float\)"),
        ([{"from": "2026-12-01", "inputs": 1}], r"\.changes\[0\]\.inputs is unknown"),
        ([{"from": "2026-12-01", "input": 1, "output": 1}] * 2, r"\.changes\[1\]\.from is not after"),
    ],
)
def test_a_change_that_cannot_be_meant_is_refused_by_its_place(changes: Any, place: str) -> None:
    with pytest.raises(ConfigurationError, match=place):
        PriceBook({"x": {"input": 3, "output": 15, "changes": changes}})


def off_peak() -> list[str]:
    """The models of the list that cost less at some hours."""
    return [name for name, entry in source.entries().items() if "off_peak_pricing" in entry]


@pytest.mark.parametrize("name", off_peak())
def test_off_peak_hours_cost_what_the_list_says(name: str) -> None:
    entry, book = source.entries()[name], PriceBook()
    sunday, monday = ms("2026-11-29T12:00Z"), ms("2026-11-30T02:00Z")
    cheap = entry["off_peak_pricing"]["input_cost_per_token"]
    assert to_decimal(book.price(name, at_ms=sunday).cost_nusd(MILLION)) == cheap * 10**6
    assert to_decimal(book.price(name, at_ms=monday).cost_nusd(MILLION)) == entry["input_cost_per_token"] * 10**6
    assert book.price(name).cost_nusd(MILLION) == book.price(name, at_ms=monday).cost_nusd(MILLION)


@given(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)))
def test_hours_hold_across_midnight_and_by_the_weekday_of_their_zone(naive: datetime) -> None:
    at = naive.replace(tzinfo=UTC)
    hours = hours_of({"hours_utc": "22:30-01:15"})
    whole = hours_of({"windows": [{"hours_utc": "00:00-00:00", "weekdays": [6]}], "weekday_timezone": "Asia/Shanghai"})
    assert hours is not None
    assert whole is not None
    minute = at.hour * 60 + at.minute
    assert hours.have(int(at.timestamp() * 1000)) == (minute >= 1350 or minute < 75)
    in_shanghai = datetime.fromtimestamp(at.timestamp() + 8 * 3600, UTC)
    assert whole.have(int(at.timestamp() * 1000)) == (in_shanghai.isoweekday() == 6)


@pytest.mark.parametrize(
    "table",
    [
        {}, {"hours_utc": "all day"}, {"windows": 3}, {"windows": [{}]},
        {"hours_utc": "00:00-01:00", "weekday_timezone": "x"},
    ],
)  # fmt: skip
def test_hours_that_cannot_be_read_are_none(table: Any) -> None:
    assert hours_of(table) is None


def test_sound_letters_and_film_are_charged_by_their_length() -> None:
    book = PriceBook({"v": {"per_output_second": "0.10"}, "s": {"per_character": "0.000015"}})
    assert to_decimal(PriceBook().price("whisper-1").cost_nusd(Usage(input_ms=12_500))) == Decimal("0.00125")
    assert to_decimal(PriceBook().price("tts-1").cost_nusd(Usage(input_characters=1000))) == Decimal("0.015")
    assert to_decimal(PriceBook().price("openai/sora-2").cost_nusd(Usage(output_ms=4000))) == Decimal("0.4")
    assert to_decimal(book.price("v").cost_nusd(Usage(output_ms=1500))) == Decimal("0.15")
    assert to_decimal(book.price("s").cost_nusd(Usage(input_characters=7))) == Decimal("0.000105")


def test_what_is_not_charged_by_tokens_is_never_held_at_0() -> None:
    for name in ("whisper-1", "tts-1", "openai/sora-2", "dall-e-3"):
        try:
            found = PriceBook().price(name)
        except PriceUnknown:
            continue
        assert found.bound_nusd(100, 0) > 0, name
        assert found.input_nusd(100) > 0, name
    own = PriceBook({"y": {"per_image": "0.04"}}).price("y")
    assert to_decimal(own.bound_nusd(0, 0)) == Decimal("0.04")


def test_images_have_rates_of_their_own() -> None:
    table = {"input": 5, "output": 10, "input_image": 10, "output_image": 40}
    usage = Usage(input_tokens=1000, input_image_tokens=400, output_tokens=1000, output_image_tokens=900)
    cost = to_decimal(PriceBook({"x": table}).price("x").cost_nusd(usage))
    assert cost == Decimal(600 * 5 + 400 * 10 + 100 * 10 + 900 * 40) / 10**6
    plain = PriceBook({"x": {"input": 5, "output": 10}}).price("x")
    assert to_decimal(plain.cost_nusd(usage)) == Decimal("0.015")
    assert len(plain.remarks(usage)) == 2


def only_in_genai_prices(provider: str, beginning: str) -> str:
    """A name of a model that LiteLLM's list has from nobody."""
    listed = "\n".join(source.entries())
    names = (name for owner, name in second._models() if owner == provider and name.startswith(beginning))
    return next(name for name in sorted(names) if name not in listed and not name[-3:].isdigit())


@pytest.mark.parametrize(
    ("provider", "beginning", "forms"),
    [
        ("anthropic", "claude-", ["{}-2099-01-01", "anthropic/{}-20990101", "{}@20990101", "litellm_proxy/{}",
                                  "anthropic:{}"]),
        ("bedrock", "us.anthropic.", ["{}", "bedrock/{}", "bedrock/us-west-2/{}", "bedrock/converse/{}",
                                      "arn:aws:bedrock:us-west-2:123456789012:inference-profile/{}"]),
        ("bedrock", "anthropic.", ["ca.{}", "bedrock/ca.{}", "bedrock/eu-west-3/{}",
                                   "bedrock/arn:aws:bedrock:ca-central-1::foundation-model/{}"]),
        ("gemini", "claude-", ["vertex_ai/{}", "vertex_ai/{}@20990101"]),
    ],
)  # fmt: skip
def test_b092_what_only_genai_prices_has_is_read_as_freely(provider: str, beginning: str, forms: list[str]) -> None:
    known = only_in_genai_prices(provider, beginning)
    for form in forms:
        found = PriceBook().price(form.format(known))
        wanted = second._models()[provider, known].id
        assert (found.source, found.model.partition("/")[2]) == ("genai-prices", wanted), form
        dated = "2099" in form or "ca." in form or "proxy" in form
        assert (found.priced_as is not None) == dated, form


def test_genai_prices_is_asked_for_what_the_list_lacks_by_its_exact_name() -> None:
    from genai_prices.data import providers

    listed = {name for provider in providers if provider.id == "anthropic" for name in (m.id for m in provider.models)}
    lacking = sorted(name for name in listed if source.find(name) is None and source.find(f"anthropic/{name}") is None)
    book = PriceBook()
    found = [book.price(name, "anthropic") for name in lacking]
    assert found
    assert {price.source for price in found} <= {"genai-prices", "litellm"}
    lacked = next(price for price in found if price.source == "genai-prices")
    assert book.price(lacked.model).model == lacked.model
    for name in (f"{lacked.model}-mini", f"{lacked.model}-x", lacked.model[:-1]):
        with pytest.raises(PriceUnknown):
            book.price(name)
