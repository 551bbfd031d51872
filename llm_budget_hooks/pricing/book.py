"""`PriceBook`: from the name of a model to its price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Final, Self

from llm_budget_hooks.errors import ConfigurationError, PriceUnknown
from llm_budget_hooks.models import Policy
from llm_budget_hooks.pricing import second, source
from llm_budget_hooks.pricing.listed import limits_of, listed_price
from llm_budget_hooks.pricing.names import Reading, masked, opened, provider_of, readings, relaxed
from llm_budget_hooks.pricing.own import own_price
from llm_budget_hooks.pricing.price import Price

_REMEMBERED: Final = 4096
_LONGEST: Final = 500


class PriceBook:
    """The prices of a policy, of LiteLLM's list for what it does not price, and of genai-prices for what that lacks.

    A name is looked up as it is written before it is read more freely: first in the policy's prices, then in its
    aliases, then in the list, each with and without provider, route and region; then in the same order without
    date, version or region, and last, behind a gateway, as anybody's model. A price found under a freer reading
    says so in `Price.priced_as`. The package genai-prices, where it is installed, is asked last, by the same readings.
    """

    def __init__(
        self,
        prices: Mapping[str, object] | None = None,
        aliases: Mapping[str, str] | None = None,
        cached_discount: Decimal = Decimal(1),
    ) -> None:
        """Read the policy's prices; the list is only read when it is needed.

        Args:
            prices: the policy's own prices by model, see `llm_budget_hooks.pricing.own`.
            aliases: other names for models, such as deployments and application inference profiles.
            cached_discount: price of cached input where none is known, as a share of the input price.

        Raises:
            ConfigurationError: for a price that cannot be meant and an alias of an unknown model; names the place.
        """
        self._cached_share = cached_discount
        _check_written_once("prices", prices or {})
        _check_written_once("aliases", aliases or {})
        self._own = {name.lower(): self._own_price(name, table) for name, table in (prices or {}).items()}
        self._aliases = {name.lower(): target for name, target in (aliases or {}).items()}
        self._found: dict[tuple[str, str | None], Price | None] = {}
        self._check_aliases(aliases or {})

    @classmethod
    def of(cls, policy: Policy) -> Self:
        """The prices of a policy."""
        return cls(policy.prices, policy.aliases, policy.cached_discount)

    def price(self, model: str, provider: str | None = None, *, at_ms: int | None = None) -> Price:
        """The price of a model.

        Args:
            model: the name that the call uses.
            provider: the provider as LiteLLM or LangChain calls it, where the caller knows it.
            at_ms: the instant in ms since the epoch; None: now, at the hours when it costs most, as a hold wants it.

        Raises:
            PriceUnknown: if no price is known; says what to write in the policy.
        """
        key = (model, provider)
        found = self._found.get(key)
        if found is None:
            if key not in self._found:
                found = self._remember(key)
            if found is None:
                raise PriceUnknown(self._unknown(model))
        if at_ms is not None:
            return found.at(at_ms)
        return found.now() if found.changes else found

    def is_one_of(self, model: str, patterns: Sequence[str]) -> bool:
        """Whether the model that a name means matches one of some patterns, in letters of whatever case.

        They are held against its canonical name, with and without its provider in front. A model without a price goes
        by the name that is given, with and without what is in front of it.
        """
        names = self._names(model)
        return any(fnmatchcase(name, pattern.lower()) for pattern in patterns for name in names)

    def _names(self, model: str) -> set[str]:
        try:
            price = self.price(model)
        except PriceUnknown:
            return {model.lower(), *_spelled(readings(model))}
        return {price.model.lower(), f"{provider_of(price.provider)}/{price.model}".lower()}

    def served(self, held: Price, model: str | None, *, at_ms: int | None = None) -> Price:
        """The price of the model that served a call, given the price that the call was held at.

        A served name that is unknown, or only a coarser one of the same model, changes nothing; nor does one that the
        list prices where the owner of the policy has priced the model that was called.

        Args:
            held: the price that the call was held at.
            model: the name of the model that served; None if the answer names none.
            at_ms: when the call was reserved, in ms since the epoch, so that it keeps the price of that instant.
        """
        then = held if at_ms is None else held.at(at_ms)
        if model is None:
            return then
        try:
            found = self.price(model, held.provider or None, at_ms=at_ms)
        except PriceUnknown:
            return then
        if held.source == "policy" and found.source != "policy":
            return then
        asked, answered = (name.rpartition("/")[2].lower() for name in (held.model, found.model))
        return then if asked.startswith(f"{answered}-20") else found

    def _remember(self, key: tuple[str, str | None]) -> Price | None:
        found = self._resolve(*key, ())
        if len(self._found) >= _REMEMBERED:
            self._found.clear()
        if len(key[0]) <= _LONGEST:
            self._found[key] = found
        return found

    def _own_price(self, name: str, table: object) -> Price:
        price = own_price(name, table, self._cached_share)
        if price.max_input_tokens and price.max_output_tokens:
            return price
        listed = next(filter(None, (source.find(reading.name) for reading in readings(name))), None)
        most = limits_of(listed[1]) if listed else (None, None)
        return own_price(name, table, self._cached_share, most)

    def _check_aliases(self, aliases: Mapping[str, str]) -> None:
        for name, target in aliases.items():
            if not isinstance(target, str):
                raise ConfigurationError(f'aliases."{masked(name)}" is the name of a model, not {target!r}')
            if name.lower() in self._own:
                raise ConfigurationError(f'"{masked(name)}" is both in prices and in aliases; keep one')
            if self._resolve(target, None, (name.lower(),)) is None:
                raise ConfigurationError(f'aliases."{masked(name)}": {self._unknown(target)}')

    def _resolve(self, model: str, provider: str | None, via: tuple[str, ...]) -> Price | None:
        exact = list(readings(model, provider))
        found = self._first(exact, via)
        if found is not None:
            return found
        sellers_first = sorted(exact, key=lambda reading: reading.provider is None)
        freer = [Reading(r.provider, name) for r in sellers_first for name in relaxed(r.name)]
        opener = [other for r in (*exact, *freer) for other in opened(r)]
        found = self._first(freer, via) or self._first(opener, via)
        if found is None:
            found = self._second(exact)
            if found is not None:
                return found
            found = self._second([*freer, *opener])
        return None if found is None else replace(found, priced_as=found.model)

    def _second(self, ways: Iterable[Reading]) -> Price | None:
        """What genai-prices has under one of some readings."""
        return next(filter(None, (second.price_of(way, self._cached_share) for way in ways)), None)

    def _first(self, ways: Iterable[Reading], via: tuple[str, ...]) -> Price | None:
        ways = list(ways)
        names = list(_spelled(ways))
        for name in names:
            if (own := self._own.get(name)) is not None:
                return own
        for name in names:
            target = self._aliases.get(name)
            if target is not None and name not in via:
                return self._resolve(target, None, (*via, name))
        return next(filter(None, (self._listed(way) for way in ways)), None)

    def _listed(self, way: Reading) -> Price | None:
        names = (f"{way.provider}/{way.name}", way.name) if way.provider else (way.name,)
        for name in names:
            found = source.find(name)
            if found is not None and (way.provider is None or _sold_by(found[1], way.provider)):
                price = listed_price(*found, self._cached_share)
                if price is not None:
                    return price
        return None

    def _unknown(self, model: str) -> str:
        shown = masked(model)
        reason = "No price is known" if source.entries() else "LiteLLM's price list was not found, so no price is known"
        return (
            f'{reason} for the model "{shown}". Write [prices."{shown}"] with input and output in dollars per million '
            "tokens (0 only if it is free), or name a priced model for it in [aliases]."
        )


def providers() -> frozenset[str]:
    """The short names of all providers that prices are known of."""
    listed = {provider_of(str(entry.get("litellm_provider") or "")) for entry in source.entries().values()}
    return frozenset((listed | second.providers()) - {""})


def _check_written_once(place: str, written: Mapping[str, object]) -> None:
    """Raise if two names differ only in the case of their letters, as models are found whatever it is."""
    seen: dict[str, str] = {}
    for name in written:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise ConfigurationError(f'{place}."{masked(other)}" and {place}."{masked(name)}" are one model; keep one')


def _spelled(ways: Iterable[Reading]) -> Iterator[str]:
    for provider, name in ways:
        if provider:
            yield f"{provider}/{name}".lower()
        yield name.lower()


def _sold_by(entry: source.Entry, provider: str) -> bool:
    return provider_of(str(entry.get("litellm_provider") or "")) == provider
