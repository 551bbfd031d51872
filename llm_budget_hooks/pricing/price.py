"""What one model costs: exact, in integers, rounded up once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Final, Literal, Protocol, Self, TypeVar

from llm_budget_hooks.pricing.rates import PER_NUSD, SERVICE_TIERS, Ceiling, Kind, Rates, Sheet, ceilings

Source = Literal["policy", "litellm"]
Brackets = tuple[tuple[int, Rates], ...]
Ceilings = tuple[tuple[int, Ceiling], ...]

_COUNTS_OF: Final[Mapping[str, Kind]] = {
    "cached_input_tokens": "cached",
    "cache_write_tokens": "write",
    "cache_write_1h_tokens": "write_1h",
    "reasoning_tokens": "reasoning",
    "input_audio_tokens": "audio_in",
    "output_audio_tokens": "audio_out",
}


class UsageCounts(Protocol):
    """The counts of a `Usage`, in tokens but for images and searches."""

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
    def images(self) -> int: ...
    @property
    def searches(self) -> int: ...
    @property
    def service_tier(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one model. All amounts it gives are nano-dollars, rounded up once.

    Counts that cannot be are cut to what can: negative ones to 0; in the prompt, cache writes for an hour, other cache
    writes, cached tokens and audio, in this order, to what is left of it; in the output, audio and then reasoning.

    Attributes:
        model: the canonical name.
        provider: LiteLLM's name of the provider; empty where the policy has none.
        source: who says so: ``policy`` or ``litellm``.
        priced_as: the canonical name, if it is not the name that was asked for but a close one.
        max_input_tokens: the largest prompt in tokens, or None.
        max_output_tokens: the largest output in tokens, or None.
        unpriced: the classes of tokens without a rate, charged at the plain one.
    """

    model: str
    provider: str
    source: Source
    priced_as: str | None
    max_input_tokens: int | None
    max_output_tokens: int | None
    unpriced: frozenset[Kind]
    _grains: int
    _per_call: int
    _per_image: int
    _per_search: int
    _standard: Brackets
    _tiers: Mapping[str, Brackets]
    _bounds: Ceilings
    _tier_bounds: Mapping[str, Ceilings]

    @classmethod
    def of(
        cls,
        model: str,
        sheet: Sheet,
        *,
        source: Source,
        provider: str = "",
        per_call: int = 0,
        per_image: int = 0,
        per_search: int = 0,
        max_input_tokens: int | None = None,
        max_output_tokens: int | None = None,
    ) -> Self:
        """The price that a sheet of rates makes.

        Args:
            model: the canonical name.
            sheet: the rates per token.
            source: who says so.
            provider: LiteLLM's name of the provider.
            per_call, per_image, per_search: in 10**-24 dollars.
            max_input_tokens, max_output_tokens: the model's limits, in tokens.
        """
        tables = {tier: sheet.brackets(tier) for tier in ("", *sheet.tiers())}
        grain = gcd(PER_NUSD, per_call, per_image, per_search, *(r for t in tables.values() for _, rs in t for r in rs))
        own = {tier: _in_grains(table, grain) for tier, table in tables.items()}
        tiers = {name: own[tier] for name, tier in SERVICE_TIERS.items() if tier in own}
        return cls(
            model, provider, source, None, max_input_tokens, max_output_tokens, sheet.unpriced,
            PER_NUSD // grain, per_call // grain, per_image // grain, per_search // grain, own[""], tiers,
            ceilings(own[""]), {name: ceilings(own[""], table) for name, table in tiers.items()},
        )  # fmt: skip

    @property
    def is_free(self) -> bool:
        """Whether nothing that this model does costs anything."""
        tables = (self._standard, *self._tiers.values())
        return not (self._per_call or self._per_image or self._per_search) and not any(
            any(rates) for table in tables for _, rates in table
        )

    def cost_nusd(self, usage: UsageCounts, *, asked_tier: str | None = None) -> int:
        """What a call cost.

        Args:
            usage: what the provider says was used.
            asked_tier: the service tier the call asked for, which counts if the usage names none.
        """
        prompt, output = usage.input_tokens, usage.output_tokens
        cached, reasoning = usage.cached_input_tokens, usage.reasoning_tokens
        rates = self._at(prompt, usage.service_tier or asked_tier)
        if not (0 <= cached <= prompt and 0 <= reasoning <= output) or _has_rare_parts(usage):
            return self._rare_cost_nusd(usage, rates)
        total = self._per_call + (prompt - cached) * rates.input + (output - reasoning) * rates.output
        if cached:
            total += cached * rates.cached
        if reasoning:
            total += reasoning * rates.reasoning
        return -(-total // self._grains)

    def _rare_cost_nusd(self, usage: UsageCounts, rates: Rates) -> int:
        fresh, cached, write, write_1h, heard = _input_parts(usage)
        text, reasoning, spoken = _output_parts(usage)
        total = self._per_call + fresh * rates.input + cached * rates.cached
        total += write * rates.write + write_1h * rates.write_1h + heard * rates.audio_in
        total += text * rates.output + reasoning * rates.reasoning + spoken * rates.audio_out
        total += max(usage.images, 0) * self._per_image + max(usage.searches, 0) * self._per_search
        return -(-total // self._grains)

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
        Searches and images are not in it.

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
        return -(-(self._per_call + input_tokens * rate_in + output_tokens * rate_out) // self._grains)

    def estimate_nusd(self, input_tokens: int, output_tokens: int, *, service_tier: str | None = None) -> int:
        """What a call of plain text would cost at the plain rates of its size.

        Args:
            input_tokens: the size of the prompt.
            output_tokens: the size of the output.
            service_tier: the service tier the call asks for.
        """
        rates = self._at(input_tokens, service_tier)
        total = self._per_call + input_tokens * rates.input + output_tokens * rates.output
        return -(-total // self._grains)

    def input_nusd(self, input_tokens: int, *, writes_cache: bool = False, service_tier: str | None = None) -> int:
        """What a prompt costs at the rates of its size, without any output.

        Args:
            input_tokens: the size of the prompt.
            writes_cache: whether the call writes a prompt cache, so that the dearest write rate can be met.
            service_tier: the service tier the call asks for.
        """
        rates = self._at(input_tokens, service_tier)
        rate = max(rates.input, rates.write, rates.write_1h) if writes_cache else rates.input
        return -(-(self._per_call + input_tokens * rate) // self._grains)

    def remarks(self, usage: UsageCounts) -> tuple[str, ...]:
        """What a reader of the ledger should know about a cost: counts that were cut, classes without a rate."""
        rateless = [name for name, kind in _COUNTS_OF.items() if kind in self.unpriced and getattr(usage, name) > 0]
        cut = ["counts that cannot be were cut"] if _impossible(usage) else []
        served_as = [f"priced as {self.priced_as}"] if self.priced_as else []
        return (*served_as, *cut, *(f"{name} at the plain rate" for name in rateless))

    def _at(self, prompt: int, tier: str | None) -> Rates:
        table = self._tiers.get(tier.lower(), self._standard) if tier else self._standard
        return _met(table, prompt)


_Held = TypeVar("_Held", Rates, Ceiling)


def _met(table: tuple[tuple[int, _Held], ...], prompt: int) -> _Held:
    """What holds for a prompt of some size."""
    for over, held in table:
        if prompt > over:
            return held
    return table[-1][1]


def _in_grains(table: Brackets, grain: int) -> Brackets:
    return tuple((over, Rates(*(rate // grain for rate in rates))) for over, rates in table)


def _has_rare_parts(usage: UsageCounts) -> bool:
    return bool(
        usage.cache_write_tokens
        or usage.cache_write_1h_tokens
        or usage.input_audio_tokens
        or usage.output_audio_tokens
        or usage.images
        or usage.searches
    )


def _input_parts(usage: UsageCounts) -> tuple[int, int, int, int, int]:
    """Fresh, cached, written, written for an hour and heard: what the prompt is made of, as it can be."""
    left = usage.input_tokens
    if left <= 0:
        return 0, 0, 0, 0, 0
    taken = [0, 0, 0, 0]
    asked = (usage.cache_write_1h_tokens, usage.cache_write_tokens, usage.cached_input_tokens, usage.input_audio_tokens)
    for i, count in enumerate(asked):
        if count > 0:
            taken[i] = count if count < left else left
            left -= taken[i]
    write_1h, write, cached, heard = taken
    return left, cached, write, write_1h, heard


def _output_parts(usage: UsageCounts) -> tuple[int, int, int]:
    """Text, reasoning and spoken: what the output is made of, as it can be."""
    whole = max(usage.output_tokens, 0)
    spoken = min(max(usage.output_audio_tokens, 0), whole)
    reasoning = min(max(usage.reasoning_tokens, 0), whole - spoken)
    return whole - spoken - reasoning, reasoning, spoken


def _impossible(usage: UsageCounts) -> bool:
    counts: dict[str, int] = {name: getattr(usage, name) for name in _COUNTS_OF}
    inside = sum(counts[name] for name, kind in _COUNTS_OF.items() if kind not in ("reasoning", "audio_out"))
    spoken_or_thought = counts["reasoning_tokens"] + counts["output_audio_tokens"]
    negative = min(usage.input_tokens, usage.output_tokens, *counts.values()) < 0
    return negative or inside > usage.input_tokens or spoken_or_thought > usage.output_tokens
