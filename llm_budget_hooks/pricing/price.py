"""What one model costs: exact, in integers, rounded up once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from time import time
from typing import Final, Literal, Protocol, Self, TypeVar

from llm_budget_hooks.money import MAX_EXACT
from llm_budget_hooks.pricing.hours import Hours
from llm_budget_hooks.pricing.rates import (
    PER_NUSD,
    PLAIN_OF,
    SERVICE_TIERS,
    Ceiling,
    Kind,
    Rates,
    Sheet,
    Units,
    ceilings,
)

Source = Literal["policy", "litellm", "genai-prices"]
Brackets = tuple[tuple[int, Rates], ...]
Ceilings = tuple[tuple[int, Ceiling], ...]

_COUNTS_OF: Final[Mapping[str, Kind]] = {
    "cached_input_tokens": "cached",
    "cache_write_tokens": "write",
    "cache_write_1h_tokens": "write_1h",
    "reasoning_tokens": "reasoning",
    "input_audio_tokens": "audio_in",
    "output_audio_tokens": "audio_out",
    "input_image_tokens": "image_in",
    "output_image_tokens": "image_out",
    "cached_audio_tokens": "cached_audio",
    "cached_image_tokens": "cached_image",
}
_NO_UNITS: Final = Units()
_LONGEST_MS: Final = 3_600_000
"""What is charged by its length is bounded as an hour of it: most providers take no longer file."""


class UsageCounts(Protocol):
    """The counts of a `Usage`, in tokens where the name does not say otherwise."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def cached_input_tokens(self) -> int: ...
    @property
    def cache_write_tokens(self) -> int: ...
    @property
    def cache_write_1h_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def reasoning_tokens(self) -> int: ...
    @property
    def input_audio_tokens(self) -> int: ...
    @property
    def output_audio_tokens(self) -> int: ...
    @property
    def input_image_tokens(self) -> int: ...
    @property
    def output_image_tokens(self) -> int: ...
    @property
    def cached_audio_tokens(self) -> int: ...
    @property
    def cached_image_tokens(self) -> int: ...
    @property
    def images(self) -> int: ...
    @property
    def searches(self) -> int: ...
    @property
    def file_searches(self) -> int: ...
    @property
    def containers(self) -> int: ...
    @property
    def input_characters(self) -> int: ...
    @property
    def input_ms(self) -> int: ...
    @property
    def output_ms(self) -> int: ...
    @property
    def service_tier(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one model. All amounts it gives are nano-dollars, rounded up once; costs are at most `MAX_EXACT`.

    Counts that cannot be are cut to what can: negative ones to 0; in the prompt, cache writes for an hour, other cache
    writes, cached tokens, audio and images, in this order, to what is left of it; in the output, audio, images and then
    reasoning.

    Attributes:
        model: the canonical name.
        provider: LiteLLM's name of the provider; empty where the policy has none.
        source: who says so: ``policy``, ``litellm`` or ``genai-prices``.
        priced_as: the canonical name, if it is not the name that was asked for but a close one.
        max_input_tokens: the largest prompt in tokens, or None.
        max_output_tokens: the largest output in tokens, or None.
        unpriced: the classes of tokens without a rate, charged at the plain one.
        changes: what it costs from some instants on, in ms since the epoch, in their order.
        earlier: the same of the past, from 0 to what holds now; empty where `changes` are all that there ever are.
        off_peak: when it costs less, and what; None if it always costs the same.
        searches_once: a call that searched pays for one search, however many it made.
        is_free: nothing that this model does costs anything.
    """

    model: str
    provider: str
    source: Source
    priced_as: str | None
    max_input_tokens: int | None
    max_output_tokens: int | None
    unpriced: frozenset[Kind]
    _grains: int
    _units: Units
    _standard: Brackets
    _tiers: Mapping[str, Brackets]
    _bounds: Ceilings
    _tier_bounds: Mapping[str, Ceilings]
    _loose: int
    changes: tuple[tuple[int, Price], ...] = ()
    earlier: tuple[tuple[int, Price], ...] = ()
    off_peak: tuple[Hours, Price] | None = None
    searches_once: bool = False
    is_free: bool = field(init=False, compare=False)

    @classmethod
    def of(
        cls,
        model: str,
        sheet: Sheet,
        *,
        source: Source,
        provider: str = "",
        units: Units = _NO_UNITS,
        max_input_tokens: int | None = None,
        max_output_tokens: int | None = None,
    ) -> Self:
        """The price that a sheet of rates makes.

        Args:
            model: the canonical name.
            sheet: the rates per token.
            source: who says so.
            provider: LiteLLM's name of the provider.
            units: what is charged by other things than tokens.
            max_input_tokens, max_output_tokens: the model's limits, in tokens.
        """
        tables = {tier: sheet.brackets(tier) for tier in ("", *sheet.tiers())}
        grain = gcd(PER_NUSD, *units, *(rate for table in tables.values() for _, rates in table for rate in rates))
        own = {tier: _in_grains(table, grain) for tier, table in tables.items()}
        tiers = {name: own[tier] for name, tier in SERVICE_TIERS.items() if tier in own}
        each = Units(*(unit // grain for unit in units))
        tokenless = not any(any(rates) for _, rates in own[""])
        loose = each.image + _LONGEST_MS * (each.input_ms + each.output_ms) if tokenless else 0
        return cls(
            model, provider, source, None, max_input_tokens, max_output_tokens, sheet.unpriced,
            PER_NUSD // grain, each, own[""], tiers, ceilings(own[""]),
            {name: ceilings(own[""], table) for name, table in tiers.items()}, loose,
        )  # fmt: skip

    def __post_init__(self) -> None:
        tables = (self._standard, *self._tiers.values())
        dearer = any(not changed.is_free for _, changed in self.changes)
        costs = any(self._units) or dearer or any(any(rates) for table in tables for _, rates in table)
        object.__setattr__(self, "is_free", not costs)

    def at(self, ms: int) -> Price:
        """What it costs at an instant.

        Args:
            ms: the instant, in ms since the epoch.
        """
        if not self.varies:
            return self
        found = self
        for since, changed in (*self.earlier, *self.changes):
            if ms >= since:
                found = changed
        if found.off_peak is not None and found.off_peak[0].have(ms):
            found = found.off_peak[1]
        return found if found.priced_as == self.priced_as else replace(found, priced_as=self.priced_as)

    @property
    def varies(self) -> bool:
        """Whether it costs something else at other instants."""
        return bool(self.changes or self.earlier) or self.off_peak is not None

    def now(self, ms: int | None = None) -> Price:
        """What it costs today, or on the day of an instant, at the hours when it costs most.

        It knows what it costs at other instants: see `at`.
        """
        if not self.changes and not self.earlier:
            return self
        now = int(time() * 1000) if ms is None else ms
        if self.earlier and self.earlier[-1][0] <= now and (not self.changes or now < self.changes[0][0]):
            return self
        known = (*(self.earlier or ((0, replace(self, changes=())),)), *self.changes)
        past = tuple(one for one in known if one[0] <= now)
        return replace(
            past[-1][1], off_peak=None, earlier=past, changes=known[len(past) :], priced_as=self.priced_as
        )  # fmt: skip

    def cost_nusd(self, usage: UsageCounts, *, asked_tier: str | None = None) -> int:
        """What a call cost.

        Args:
            usage: what the provider says was used.
            asked_tier: the service tier the call asked for, which counts if the usage names none.
        """
        prompt, output = usage.input_tokens, usage.output_tokens
        cached, reasoning, searches = usage.cached_input_tokens, usage.reasoning_tokens, usage.searches
        write, write_1h = usage.cache_write_tokens, usage.cache_write_1h_tokens
        rates = self._at(prompt, usage.service_tier or asked_tier)
        fresh, text = prompt - cached - write - write_1h, output - reasoning
        if min(fresh, text, cached, write, write_1h, reasoning, searches) < 0 or _has_more(usage):
            return self._rare_cost_nusd(usage, rates)
        total = self._units.call + fresh * rates.input + text * rates.output
        if cached:
            total += cached * rates.cached
        if write or write_1h:
            total += write * rates.write + write_1h * rates.write_1h
        if reasoning:
            total += reasoning * rates.reasoning
        if searches:
            total += (1 if self.searches_once else searches) * self._units.search
        cost = -(-total // self._grains)
        return cost if cost < MAX_EXACT else MAX_EXACT

    def _rare_cost_nusd(self, usage: UsageCounts, rates: Rates) -> int:
        fresh, cached, write, write_1h, heard, seen = _input_parts(usage)
        kept_sound, kept_images, kept = _shares(cached, usage.cached_audio_tokens, usage.cached_image_tokens)
        text, reasoning, spoken, drawn = _output_parts(usage)
        total = self._units.call + fresh * rates.input + kept * rates.cached
        total += kept_sound * rates.cached_audio + kept_images * rates.cached_image
        total += write * rates.write + write_1h * rates.write_1h + heard * rates.audio_in + seen * rates.image_in
        total += text * rates.output + reasoning * rates.reasoning
        total += spoken * rates.audio_out + drawn * rates.image_out
        units = self._units
        searches = min(usage.searches, 1) if self.searches_once else usage.searches
        total += max(usage.images, 0) * units.image + max(searches, 0) * units.search
        total += max(usage.file_searches, 0) * units.file_search + max(usage.containers, 0) * units.container
        total += max(usage.input_characters, 0) * units.character
        total += max(usage.input_ms, 0) * units.input_ms + max(usage.output_ms, 0) * units.output_ms
        return min(-(-total // self._grains), MAX_EXACT)

    def searches_nusd(self, count: int) -> int:
        """What the web searches of a call cost, without its tokens."""
        paid = min(count, 1) if self.searches_once else count
        return min(-(-paid * self._units.search // self._grains), MAX_EXACT)

    def bound_nusd(
        self,
        input_tokens: int,
        output_tokens: int,
        *,
        writes_cache: bool = False,
        service_tier: str | None = None,
        audio: bool = False,
    ) -> int:
        """The most that a call can cost, whatever its tokens turn out to be.

        A call that asks for a service tier can be served by the standard one, so the dearer of the two counts.
        Searches and images are not in it, but for one image, an hour or a letter for each token where nothing else
        is charged.

        Args:
            input_tokens: the most that the prompt can have.
            output_tokens: the most that the output can have.
            writes_cache: whether the call writes a prompt cache.
            service_tier: the service tier the call asks for.
            audio: whether the call can hear or speak.
        """
        table = self._tier_bounds.get(service_tier.lower(), self._bounds) if service_tier else self._bounds
        top = _met(table, input_tokens)
        rate_in = top.audio_in if audio else top.input_writing if writes_cache else top.input
        rate_out = top.audio_out if audio else top.output
        total = self._flat(input_tokens) + input_tokens * rate_in + output_tokens * rate_out
        return -(-total // self._grains)

    def estimate_nusd(self, input_tokens: int, output_tokens: int, *, service_tier: str | None = None) -> int:
        """What a call of plain text would cost at the plain rates of its size.

        Args:
            input_tokens: the size of the prompt.
            output_tokens: the size of the output.
            service_tier: the service tier the call asks for.
        """
        rates = self._at(input_tokens, service_tier)
        total = self._flat(input_tokens) + input_tokens * rates.input + output_tokens * rates.output
        return -(-total // self._grains)

    def input_nusd(
        self, input_tokens: int, *, writes_cache: bool = False, service_tier: str | None = None, audio: bool = False
    ) -> int:
        """What a prompt costs at the rates of its size, without any output.

        Args:
            input_tokens: the size of the prompt.
            writes_cache: whether the call writes a prompt cache, so that the dearest write rate can be met.
            service_tier: the service tier the call asks for.
            audio: whether the call can hear, so that all of it may be sound.
        """
        rates = self._at(input_tokens, service_tier)
        rate = max(rates.input, rates.write, rates.write_1h) if writes_cache else rates.input
        rate = max(rate, rates.audio_in) if audio else rate
        return -(-(self._flat(input_tokens) + input_tokens * rate) // self._grains)

    def _flat(self, input_tokens: int) -> int:
        """What is charged beside the tokens, as far as a call's size bounds it."""
        return self._units.call + self._loose + input_tokens * self._units.character

    def remarks(self, usage: UsageCounts) -> tuple[str, ...]:
        """What a reader of the ledger should know about a cost: counts that were cut, classes without a rate.

        Reasoning without a rate of its own is output, and none of them.
        """
        served_as = (f"priced as {self.priced_as}",) if self.priced_as else ()
        cached = usage.cached_input_tokens
        possible = 0 <= cached <= usage.input_tokens and 0 <= usage.reasoning_tokens <= usage.output_tokens
        if possible and not (usage.cache_write_tokens or usage.cache_write_1h_tokens or _has_more(usage)):
            rateless = cached and "cached" in self.unpriced
            return (*served_as, _at_plain_rate("cached_input_tokens")) if rateless else served_as
        cut = ("counts that cannot be were cut",) if _impossible(usage) else ()
        names = [name for name, kind in _COUNTS_OF.items() if kind in self.unpriced and kind != "reasoning"]
        return (*served_as, *cut, *(_at_plain_rate(name) for name in names if getattr(usage, name) > 0))

    def _at(self, prompt: int, tier: str | None) -> Rates:
        table = self._tiers.get(tier.lower(), self._standard) if tier else self._standard
        return _met(table, prompt)


def _at_plain_rate(name: str) -> str:
    return f"{name} at the plain rate"


_Held = TypeVar("_Held", Rates, Ceiling)


def _met(table: tuple[tuple[int, _Held], ...], prompt: int) -> _Held:
    """What holds for a prompt of some size."""
    for over, held in table:
        if prompt > over:
            return held
    return table[-1][1]


def _in_grains(table: Brackets, grain: int) -> Brackets:
    return tuple((over, Rates(*(rate // grain for rate in rates))) for over, rates in table)


def _has_more(usage: UsageCounts) -> bool:
    return bool(
        usage.input_audio_tokens
        or usage.output_audio_tokens
        or usage.input_image_tokens
        or usage.output_image_tokens
        or usage.cached_audio_tokens
        or usage.cached_image_tokens
        or usage.images
        or usage.file_searches
        or usage.containers
        or usage.input_characters
        or usage.input_ms
        or usage.output_ms
    )


def _input_parts(usage: UsageCounts) -> list[int]:
    """Fresh, cached, written, written for an hour, heard and seen: what the prompt is made of, as it can be."""
    write_1h, write, cached, heard, seen, fresh = _shares(
        usage.input_tokens,
        usage.cache_write_1h_tokens,
        usage.cache_write_tokens,
        usage.cached_input_tokens,
        usage.input_audio_tokens,
        usage.input_image_tokens,
    )
    return [fresh, cached, write, write_1h, heard, seen]


def _output_parts(usage: UsageCounts) -> list[int]:
    """Text, reasoning, spoken and drawn: what the output is made of, as it can be."""
    spoken, drawn, reasoning, text = _shares(
        usage.output_tokens, usage.output_audio_tokens, usage.output_image_tokens, usage.reasoning_tokens
    )
    return [text, reasoning, spoken, drawn]


def _shares(whole: int, *asked: int) -> list[int]:
    """Counts cut, in their order, to what is left of a whole; and the rest of it."""
    left = max(whole, 0)
    taken = []
    for count in asked:
        share = min(max(count, 0), left)
        taken.append(share)
        left -= share
    return [*taken, left]


def _impossible(usage: UsageCounts) -> bool:
    counts: dict[str, int] = {name: getattr(usage, name) for name in _COUNTS_OF}
    kept = usage.cached_audio_tokens + usage.cached_image_tokens
    inside = sum(counts[name] for name, kind in _COUNTS_OF.items() if PLAIN_OF[kind] == "input") - kept
    spoken_or_thought = sum(counts[name] for name, kind in _COUNTS_OF.items() if PLAIN_OF[kind] == "output")
    negative = min(usage.input_tokens, usage.output_tokens, *counts.values()) < 0
    overfull = inside > usage.input_tokens or spoken_or_thought > usage.output_tokens
    return negative or overfull or kept > usage.cached_input_tokens
