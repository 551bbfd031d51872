from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_budget_hooks.money import (
    MAX_CALL_NUSD,
    MAX_EXACT,
    MAX_LIMIT_NUSD,
    NUSD,
    format_usd,
    parse_amount,
    parse_correction,
    parse_limit,
    parse_nusd,
    to_decimal,
)

WRITTEN = [
    ("$50", 50 * NUSD),
    ("50", 50 * NUSD),
    ("  $0.005 ", 5_000_000),
    ("5¢", 50_000_000),
    ("0.5¢", 5_000_000),
    (".5", 500_000_000),
    ("2.", 2 * NUSD),
    ("1E-7", 100),
    ("0", 0),
    ("-0", 0),
    (0, 0),
    (50, 50 * NUSD),
    (Decimal("0.0031"), 3_100_000),
    (Decimal("1E+3"), 1000 * NUSD),
    (Decimal("-0"), 0),
    ("0.0000000001", 1),
    ("1.0000000001", NUSD + 1),
    (Decimal("1E-999999"), 1),
]

REFUSED = [
    0.5,
    1.0,
    float("nan"),
    float("inf"),
    True,
    False,
    None,
    b"5",
    [5],
    -1,
    "-1",
    "-$1",
    "$-1",
    "-0.0000000000001",
    Decimal("-1E-20"),
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("Infinity"),
    Decimal("1E+999999"),
    "1e9999",
    10**5000,
    "nan",
    "inf",
    "",
    "$",
    "¢",
    "$5¢",
    "--5",
    "5 dollars",
    "€5",
    "1,000",
    "1_000",
    "0x10",
    "1.2.3",
    "\u0665",
    "5\x00",
    "9" * 5000,
]


@pytest.mark.parametrize(("value", "nusd"), WRITTEN, ids=repr)
def test_an_amount_is_read_exactly_and_rounded_up(value: object, nusd: int) -> None:
    assert parse_nusd(value) == nusd


@pytest.mark.parametrize("value", REFUSED, ids=lambda v: repr(v)[:30] if not isinstance(v, int) else str(v % 1000))
def test_what_is_no_amount_is_refused_and_the_message_says_what_is(value: object) -> None:
    with pytest.raises(ValueError) as refusal:
        parse_nusd(value)
    assert len(str(refusal.value)) < 250


def test_the_message_names_what_was_given_and_what_is_accepted() -> None:
    with pytest.raises(ValueError, match=r"0\.5 \(float\).*\"\$50\".*text"):
        parse_nusd(0.5)
    with pytest.raises(ValueError, match=r"'fifty'.*\"5¢\""):
        parse_nusd("fifty")


def test_limits_and_amounts_have_a_ceiling() -> None:
    assert parse_limit("9000000") == MAX_LIMIT_NUSD < MAX_EXACT
    assert parse_amount(100_000) == MAX_CALL_NUSD
    with pytest.raises(ValueError, match="at most"):
        parse_limit("9000000.000000001")
    with pytest.raises(ValueError, match="at most"):
        parse_amount("100000.01")


@pytest.mark.parametrize(
    ("value", "nusd"),
    [
        ("-0.40", -400_000_000),
        ("-$0.40", -400_000_000),
        ("$-0.40", -400_000_000),
        ("+1", NUSD),
        (Decimal("-76.16"), -76_160_000_000),
        ("-0.0000000019", -1),
    ],
    ids=repr,
)
def test_a_correction_has_a_sign(value: object, nusd: int) -> None:
    assert parse_correction(value) == nusd


def test_a_correction_is_bounded_and_no_float() -> None:
    for value in ("-9000001", "9000001", -0.4, Decimal("-Infinity")):
        with pytest.raises(ValueError):
            parse_correction(value)


def test_b056_a_million_tiny_charges_have_no_binary_tail() -> None:
    total = sum([parse_nusd("0.0000015")] * 1_000_000)
    assert to_decimal(total) == Decimal("1.50")
    assert repr(to_decimal(total)) == "Decimal('1.5')"


def test_b054_sums_are_exact() -> None:
    assert str(to_decimal(parse_nusd("128") + parse_nusd("0.1"))) == "128.1"
    assert sum([parse_nusd("0.1")] * 10) == parse_nusd("1")


@pytest.mark.parametrize(
    ("nusd", "text", "shown"),
    [
        (0, "0", "$0.00"),
        (2 * NUSD, "2", "$2.00"),
        (1_500_000_000, "1.5", "$1.50"),
        (3_100_000, "0.0031", "$0.0031"),
        (1_980_000_000, "1.98", "$1.98"),
        (100 * NUSD, "100", "$100.00"),
        (-400_000_000, "-0.4", "-$0.40"),
        (MAX_LIMIT_NUSD, "9000000", "$9000000.00"),
    ],
)
def test_dollars_are_shown_without_exponent(nusd: int, text: str, shown: str) -> None:
    assert str(to_decimal(nusd)) == text
    assert format_usd(nusd) == shown


def test_dollars_do_not_depend_on_the_caller_s_decimal_context() -> None:
    with localcontext() as context:
        context.prec = 3
        assert parse_nusd(Decimal("1234.567891")) == 1_234_567_891_000
        assert to_decimal(1_234_567_891_000) == Decimal("1234.567891")


@given(st.integers(-(10**18), 10**18))
def test_nano_dollars_survive_the_round_trip(nusd: int) -> None:
    assert parse_correction_any(to_decimal(nusd)) == nusd
    assert Decimal(format_usd(nusd).replace("$", "")) == to_decimal(nusd)


def parse_correction_any(dollars: Decimal) -> int:
    return parse_nusd(dollars) if dollars >= 0 else -parse_nusd(-dollars)


@given(st.decimals(min_value=0, max_value=10**7, allow_nan=False, allow_infinity=False))
def test_rounding_never_goes_below_what_was_said(dollars: Decimal) -> None:
    exact = Fraction(dollars) * NUSD
    assert exact <= parse_nusd(dollars) < exact + 1
