"""Prices that the owner of a policy writes.

    [prices."my-model"]
    input = "$3"              # dollars per million tokens; text, int or Decimal
    output = "$15"
    cached_input = "$0.30"    # also: cache_write, cache_write_1h, reasoning, input_audio, output_audio,
                              # input_image, output_image, cached_audio, cached_image
    per_call = "$0.001"       # dollars each; also: per_image, per_search, per_character,
                              # per_input_second, per_output_second, per_file_search, per_container
    max_input_tokens = 200_000
    max_output_tokens = 64_000

    [[prices."my-model".above]]   # for the whole of a prompt with more than so many tokens
    tokens = 200_000
    input = "$6"
    output = "$22.50"

    [prices."my-model".flex]      # a service tier: flex, priority, batches, balanced, ultrafast
    input = "$1.50"
    output = "$7.50"

    [[prices."my-model".changes]] # all that it costs from a day on, 00:00 UTC, or from an instant; append, never edit
    from = 2026-12-01
    input = "$2.50"
    output = "$12"

`input` and `output` are needed, unless something is charged by the call, image, letter or second. A rate of 0 counts:
so a model is free. A change says everything anew; a call keeps the price of the instant when it was reserved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.money import NUSD, format_usd, parse_amount, parse_nusd
from llm_budget_hooks.pricing.price import Price
from llm_budget_hooks.pricing.rates import PER_NUSD, SERVICE_TIERS, Kind, Sheet, Units

_RATES: Final[Mapping[str, Kind]] = {
    "input": "input",
    "output": "output",
    "cached_input": "cached",
    "cache_write": "write",
    "cache_write_1h": "write_1h",
    "reasoning": "reasoning",
    "input_audio": "audio_in",
    "output_audio": "audio_out",
    "input_image": "image_in",
    "output_image": "image_out",
    "cached_audio": "cached_audio",
    "cached_image": "cached_image",
}
_EACH: Final = (
    "per_call", "per_image", "per_search", "per_character", "per_input_second", "per_output_second", "per_file_search",
    "per_container",
)  # fmt: skip
_TOOLS: Final = ("per_search", "per_file_search", "per_container")
_MS: Final = 1000
_LIMITS: Final = ("max_input_tokens", "max_output_tokens")
_TIERS: Final = tuple(sorted(set(SERVICE_TIERS.values())))
_MILLION: Final = 10**6
_MAX_NUSD_PER_MILLION: Final = 1000 * NUSD
_MAX_TOKENS: Final = 10**12

Table = Mapping[str, object]
_Found = dict[tuple[Kind, int, str], int]


def own_price(
    name: str, table: object, cached_share: Decimal, limits: tuple[int | None, int | None] = (None, None)
) -> Price:
    """The price that a table of the policy writes down.

    Args:
        name: the model.
        table: what stands under ``[prices.MODEL]``.
        cached_share: price of cached input where none is written, as a share of input.
        limits: the model's largest input and output in tokens, where the table has none.

    Raises:
        ConfigurationError: for an unknown key or a value that cannot be meant; names the place.
    """
    place = f'prices."{name}"'
    written = _table(place, table)
    _only(place, written, {*_RATES, *_EACH, *_LIMITS, "above", "changes", *_TIERS})
    first = _price(name, place, written, cached_share, limits)
    changes = tuple(_changes(name, place, written, cached_share, (first.max_input_tokens, first.max_output_tokens)))
    return replace(first, changes=changes) if changes else first


def _changes(
    name: str, place: str, table: Table, cached_share: Decimal, limits: tuple[int | None, int | None]
) -> Iterator[tuple[int, Price]]:
    listed = table.get("changes", [])
    if not isinstance(listed, list | tuple):
        raise ConfigurationError(f"{place}.changes is a list of tables, not {listed!r}")
    latest = 0
    for i, item in enumerate(listed):
        at = f"{place}.changes[{i}]"
        change = _table(at, item)
        _only(at, change, {"from", *_RATES, *_EACH, *_LIMITS, "above", *_TIERS})
        since = _instant(f"{at}.from", change.get("from"))
        if since <= latest:
            raise ConfigurationError(f"{at}.from is not after the change before it; changes are appended")
        latest = since
        yield since, _price(name, at, {k: v for k, v in change.items() if k != "from"}, cached_share, limits)


def _price(
    name: str, place: str, written: Table, cached_share: Decimal, limits: tuple[int | None, int | None]
) -> Price:
    each = {key: _dollars(f"{place}.{key}", written[key]) for key in _EACH if key in written}
    rates = _rates(place, written, "")
    _need_plain_rates(place, rates, any(amount for key, amount in each.items() if key not in _TOOLS))
    for tier in _TIERS:
        if tier in written:
            rates |= _tier_rates(place, written, tier)
    most = [_count(f"{place}.{key}", written[key]) if key in written else None for key in _LIMITS]
    return Price.of(
        name,
        Sheet(rates, cached_share),
        source="policy",
        units=_units(each),
        max_input_tokens=most[0] or limits[0],
        max_output_tokens=most[1] or limits[1],
    )


def _units(each: Mapping[str, int]) -> Units:
    call, image, search, character, heard, made, *tools = (each.get(key, 0) for key in _EACH)
    return Units(call, image, search, character, -(-heard // _MS), -(-made // _MS), *tools)


def _instant(place: str, value: object) -> int:
    """Milliseconds since the epoch of a day or an instant, which are UTC if they do not say otherwise."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    except ValueError:
        value = None
    if not isinstance(value, datetime):
        raise ConfigurationError(f"{place} is a day or an instant, such as 2026-12-01 or 2026-12-01T09:00:00Z")
    at = value if value.tzinfo else value.replace(tzinfo=UTC)
    return int(at.timestamp() * 1000)


def _tier_rates(place: str, written: Table, tier: str) -> _Found:
    place = f"{place}.{tier}"
    table = _table(place, written[tier])
    _only(place, table, {*_RATES, "above"})
    return _rates(place, table, tier)


def _rates(place: str, table: Table, tier: str) -> _Found:
    found: _Found = {
        (kind, 0, tier): _rate(f"{place}.{key}", table[key]) for key, kind in _RATES.items() if key in table
    }
    longer = table.get("above", [])
    if not isinstance(longer, list | tuple):
        raise ConfigurationError(f"{place}.above is a list of tables, not {longer!r}")
    overs: set[int] = set()
    for i, item in enumerate(longer):
        at = f"{place}.above[{i}]"
        above = _table(at, item)
        _only(at, above, {*_RATES, "tokens"})
        over = _count(f"{at}.tokens", above.get("tokens"))
        if over in overs:
            raise ConfigurationError(f"{at}.tokens is {over} once more; write all rates above it in one table")
        overs.add(over)
        found |= {(kind, over, tier): _rate(f"{at}.{key}", above[key]) for key, kind in _RATES.items() if key in above}
    return found


def _need_plain_rates(place: str, rates: _Found, priced_otherwise: bool) -> None:
    for kind in ("input", "output"):
        if (kind, 0, "") in rates:
            continue
        if not priced_otherwise:
            raise ConfigurationError(f"{place} needs {kind} in dollars per million tokens; 0 only if it is free")
        rates[kind, 0, ""] = 0


def _rate(place: str, value: object) -> int:
    try:
        nusd = parse_nusd(value)
    except ValueError as error:
        raise ConfigurationError(f"{place}: {error}") from None
    if nusd > _MAX_NUSD_PER_MILLION:
        raise ConfigurationError(
            f"{place} is {format_usd(nusd)} per million tokens, more than any model costs ($1000 at most). "
            "Rates are dollars per million tokens, not per token."
        )
    return nusd * PER_NUSD // _MILLION


def _dollars(place: str, value: object) -> int:
    try:
        return parse_amount(value) * PER_NUSD
    except ValueError as error:
        raise ConfigurationError(f"{place}: {error}") from None


def _count(place: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_TOKENS:
        raise ConfigurationError(f"{place} is a number of tokens from 1 to {_MAX_TOKENS}, not {value!r}")
    return value


def _table(place: str, value: object) -> Table:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{place} is a table of prices, not {value!r}")
    return value


def _only(place: str, table: Table, accepted: set[str]) -> None:
    for key in table:
        if key not in accepted:
            raise ConfigurationError(f"{place}.{key} is unknown; accepted: {', '.join(sorted(accepted))}")
