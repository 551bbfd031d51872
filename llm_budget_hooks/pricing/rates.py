"""Exact rates: integers of 10**-24 dollars, from what a source has written down.

A source writes rates by class of tokens, by the prompt size above which they hold, and by service tier. What it
leaves out is filled in so that no token is ever free by omission:

- a long-context rate that a service tier lacks stands to the standard one as the tier's short-context rate does;
- cached input, cache writes and audio that a service tier or a long context lacks are priced as without it, and in
  proportion to the plain rate where that is dearer; reasoning always in proportion to the plain output rate;
- cached audio and images that have no rate cost as much less than fresh ones as cached text does than fresh text;
- any other class that has no rate is charged at the plain input or output rate, cached input at a share of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, NamedTuple

Kind = Literal[
    "input", "output", "cached", "write", "write_1h", "reasoning", "audio_in", "audio_out", "image_in", "image_out",
    "cached_audio", "cached_image",
]  # fmt: skip
Written = Mapping[tuple[Kind, int, str], int]
"""Rates by class, by the prompt size in tokens above which they hold (0: always) and by service tier ("": standard)."""

PER_DOLLAR: Final = 10**24
PER_NUSD: Final = 10**15
MAX_RATE: Final = PER_DOLLAR // 1000
"""$1,000 per million tokens. Nothing costs more; a price typed per token instead of per million does."""

SERVICE_TIERS: Final[Mapping[str, str]] = {
    "flex": "flex",
    "priority": "priority",
    "fast": "priority",
    "on_demand_flex": "flex",
    "on_demand_priority": "priority",
    "batch": "batches",
    "batches": "batches",
    "balanced": "balanced",
    "ultrafast": "ultrafast",
}
"""The service tiers with rates of their own, by the names under which calls and providers know them."""

PLAIN_OF: Final[Mapping[Kind, Kind]] = {
    "cached": "input",
    "write": "input",
    "write_1h": "input",
    "audio_in": "input",
    "reasoning": "output",
    "audio_out": "output",
    "image_in": "input",
    "image_out": "output",
    "cached_audio": "input",
    "cached_image": "input",
}
_SENSED: Final[tuple[Kind, Kind]] = ("audio_in", "image_in")


class Rates(NamedTuple):
    """What one token of each class costs, in 10**-24 dollars."""

    input: int
    output: int
    cached: int
    write: int
    write_1h: int
    reasoning: int
    audio_in: int
    audio_out: int
    image_in: int
    image_out: int
    cached_audio: int
    cached_image: int


class Units(NamedTuple):
    """What is charged by other things than tokens, in 10**-24 dollars."""

    call: int = 0
    image: int = 0
    search: int = 0
    character: int = 0
    input_ms: int = 0
    output_ms: int = 0
    file_search: int = 0
    container: int = 0


class Ceiling(NamedTuple):
    """The highest rates that a call of some size can meet, in 10**-24 dollars per token."""

    input: int
    input_writing: int
    output: int
    audio_in: int
    audio_out: int


def rate_of(dollars: Decimal | int) -> int:
    """The rate of one token in 10**-24 dollars, rounded up.

    Args:
        dollars: dollars per token.
    """
    numerator, denominator = Decimal(dollars).as_integer_ratio()
    return -(-numerator * PER_DOLLAR // denominator)


@dataclass(frozen=True, slots=True)
class Sheet:
    """The rates that a source has for one model.

    Attributes:
        written: the rates; the plain input and output rate are among them.
        cached_share: price of cached input where none is written, as a share of input.
    """

    written: Written
    cached_share: Decimal

    @property
    def unpriced(self) -> frozenset[Kind]:
        """The classes that have no rate of their own."""
        return frozenset(kind for kind in PLAIN_OF if (kind, 0, "") not in self.written)

    def brackets(self, tier: str = "") -> tuple[tuple[int, Rates], ...]:
        """(prompt size above which the rates hold, rates), the largest size first."""
        overs = sorted({0, *(over for _, over, _ in self.written)}, reverse=True)
        return tuple((over, self._rates(over, tier)) for over in overs)

    def tiers(self) -> set[str]:
        """The service tiers that have rates of their own."""
        return {tier for _, _, tier in self.written if tier}

    def _rates(self, over: int, tier: str) -> Rates:
        plain_in = self._rate("input", over, tier) or 0
        plain_out = self._rate("output", over, tier) or 0
        cached = self._or("cached", over, tier, _scaled(plain_in, *self.cached_share.as_integer_ratio()))
        write = self._or("write", over, tier, plain_in)
        heard, seen = (self._or(kind, over, tier, plain_in) for kind in _SENSED)
        return Rates(
            input=plain_in,
            output=plain_out,
            cached=cached,
            write=write,
            write_1h=self._or("write_1h", over, tier, max(write, plain_in)),
            reasoning=self._or("reasoning", over, tier, plain_out),
            audio_in=heard,
            audio_out=self._or("audio_out", over, tier, plain_out),
            image_in=seen,
            image_out=self._or("image_out", over, tier, plain_out),
            cached_audio=self._or("cached_audio", over, tier, max(cached, _scaled(cached, heard, plain_in))),
            cached_image=self._or("cached_image", over, tier, max(cached, _scaled(cached, seen, plain_in))),
        )

    def _or(self, kind: Kind, over: int, tier: str, otherwise: int) -> int:
        rate = self._rate(kind, over, tier)
        return otherwise if rate is None else rate

    def _rate(self, kind: Kind, over: int, tier: str) -> int | None:
        written = self.written.get((kind, over, tier))
        if written is not None:
            return written
        if over:
            return self._long(kind, over, tier)
        standard = self.written.get((kind, 0, ""))
        if not tier or standard is None or kind not in PLAIN_OF:
            return standard
        proportional = self._in_proportion(standard, PLAIN_OF[kind], 0, tier)
        return proportional if kind == "reasoning" else max(standard, proportional)

    def _long(self, kind: Kind, over: int, tier: str) -> int | None:
        standard = self.written.get((kind, over, "")) if tier else None
        if standard is not None:
            return self._in_proportion(standard, kind, 0, tier)
        shorter = max((o for k, o, _ in self.written if k == kind and o < over), default=0)
        rate = self._rate(kind, shorter, tier)
        plain = PLAIN_OF.get(kind)
        if rate is None or plain is None:
            return rate
        return max(rate, _scaled(rate, self._rate(plain, over, tier) or 0, self._rate(plain, shorter, tier) or 0))

    def _in_proportion(self, standard: int, kind: Kind, over: int, tier: str) -> int:
        return _scaled(standard, self._rate(kind, over, tier) or 0, self._rate(kind, over, "") or 0)


def _scaled(rate: int, numerator: int, denominator: int) -> int:
    return -(-rate * numerator // denominator) if denominator else rate


def ceilings(*tables: tuple[tuple[int, Rates], ...]) -> tuple[tuple[int, Ceiling], ...]:
    """(prompt size above which it holds, ceiling) over all tables together, the largest size first."""
    overs = sorted({over for table in tables for over, _ in table}, reverse=True)
    return tuple((over, _ceiling([r for table in tables for o, r in table if o <= over])) for over in overs)


def _ceiling(met: list[Rates]) -> Ceiling:
    plain = max(max(r.input, r.cached, r.image_in, r.cached_image) for r in met)
    output = max(max(r.output, r.reasoning, r.image_out) for r in met)
    writing = max(plain, *(max(r.write, r.write_1h) for r in met))
    return Ceiling(
        input=plain,
        input_writing=writing,
        output=output,
        audio_in=max(writing, *(max(r.audio_in, r.cached_audio) for r in met)),
        audio_out=max(output, *(r.audio_out for r in met)),
    )
