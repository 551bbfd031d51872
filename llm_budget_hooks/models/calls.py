"""What is asked of a model and what it used: `Call` and `Usage`."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.models.slots import quick_init
from llm_budget_hooks.money import parse_amount

MAX_TOKENS = 10**12
SERVICE_TIERS = frozenset((
    "auto", "default", "standard", "standard_only", "on_demand", "scale", "flex", "on_demand_flex", "priority",
    "on_demand_priority", "fast", "ultrafast", "balanced", "batch", "batches",
))  # fmt: skip
"""The names under which calls and providers know service tiers; under another one, no price is exact."""

_SHARES = {
    "input_tokens": ("cache_write_1h_tokens", "cache_write_tokens", "cached_input_tokens"),
    "cached_input_tokens": ("cached_audio_tokens", "cached_image_tokens"),
}
_PARTS = {
    "input_tokens": ("input_audio_tokens", "input_image_tokens"),
    "output_tokens": ("reasoning_tokens", "output_audio_tokens", "output_image_tokens"),
}


def checked_count(owner: str, name: str, value: object) -> None:
    """Raise unless a value is None or a whole number from 0 to 10**12.

    Raises:
        ConfigurationError: naming the owner, the field and what was given.
    """
    if value is None:
        return
    if type(value) is not int:
        raise ConfigurationError(f"{owner}.{name} is a whole number, not {value!r}")
    if not 0 <= value <= MAX_TOKENS:
        raise ConfigurationError(f"{owner}.{name} is {value}; it is from 0 to {MAX_TOKENS}")


def checked_cost(owner: str, name: str, value: object) -> int:
    """An amount of dollars for one call, as nano-dollars.

    Args:
        owner: whose field it is, for the message.
        name: the field's name.
        value: "$0.10", "5¢", "0.10", an int or a Decimal of dollars.

    Raises:
        ConfigurationError: for floats, negatives, NaN, or more than $100,000.
    """
    try:
        return parse_amount(value)
    except ValueError as error:
        raise ConfigurationError(f"{owner}.{name}: {error}") from None


def checked_text(owner: str, name: str, value: object) -> None:
    """Let text and None pass.

    Raises:
        ConfigurationError: it is anything else.
    """
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"{owner}.{name} is text, not {value!r}")


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model call about to be made.

    Attributes:
        model: the model's name, as the provider or LiteLLM knows it.
        tenant: who pays; None is the tenant ``default``.
        user: who asks, always within the tenant; None is the tenant's one anonymous user.
        input_tokens: size of the prompt; None: unknown, the model's largest input is assumed.
        max_output_tokens: the bound sent to the provider; None if there is none.
        step: the named call site inside an answer; None: the model.
        feature: the part of the product that asked.
        utterance: the user's request that this call serves; None: the surrounding `engine.utterance()`, or its own.
        id: names this one attempt; None: made up. All ids of a namespace are in one space, as a hold can be settled by
            its id alone: where clients of several tenants choose ids, put the tenant in front, or one gets
            `ReservationConflict` for what another has used.
        amount: a fixed estimate in dollars, instead of one from tokens and prices.
        service_tier: ``priority``, ``flex`` or ``batch`` if the call asks for it.
        writes_cache: whether the call writes a prompt cache, which some providers charge for.
        audio: whether the call can hear or speak, at the model's rates for that.

    Raises:
        ConfigurationError: for a field that cannot be what was meant.
    """

    model: str
    tenant: str | None = None
    user: str | None = None
    input_tokens: int | None = None
    max_output_tokens: int | None = None
    step: str | None = None
    feature: str | None = None
    utterance: str | None = None
    id: str | None = None
    amount: Decimal | int | str | None = None
    service_tier: str | None = None
    writes_cache: bool = False
    audio: bool = False
    amount_nusd: int | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.model) is not str or not self.model.strip():
            raise ConfigurationError(f"Call.model is the name of a model, not {self.model!r}")
        if self.input_tokens is not None:
            checked_count("Call", "input_tokens", self.input_tokens)
        if self.max_output_tokens is not None:
            checked_count("Call", "max_output_tokens", self.max_output_tokens)
        if self.amount is not None:
            object.__setattr__(self, "amount_nusd", checked_cost("Call", "amount", self.amount))
        for value in (self.tenant, self.user, self.step, self.feature, self.utterance, self.id, self.service_tier):
            if value is not None and type(value) is not str:
                self._refuse_non_text()
        if self.id is not None and not self.id.strip():
            raise ConfigurationError("Call.id is empty; leave it out, and one is made up")
        if self.service_tier is not None and self.service_tier.lower() not in SERVICE_TIERS:
            raise ConfigurationError(f"Call.service_tier is no tier that there is: {self.service_tier!r:.60}")
        if type(self.writes_cache) is not bool or type(self.audio) is not bool:
            raise ConfigurationError("Call.writes_cache and Call.audio are True or False")

    def _refuse_non_text(self) -> None:
        for name in ("tenant", "user", "step", "feature", "utterance", "id", "service_tier"):
            checked_text("Call", name, getattr(self, name))


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the provider says was used. Counts are tokens where the name does not say otherwise.

    Parts that are more than their whole are cut to it, and the usage is not exact then: of the prompt, first what was
    written to a cache for an hour, then for 5 minutes, stays, then what was read from one.

    Attributes:
        input_tokens: all of the prompt, cached and cache-written parts included.
        cached_input_tokens: the part of the prompt read from a cache.
        cache_write_tokens: the part written to a cache for 5 minutes.
        cache_write_1h_tokens: the part written to a cache for an hour.
        output_tokens: all that was generated, reasoning included.
        reasoning_tokens: the part of the output that was reasoning.
        cached_audio_tokens, cached_image_tokens: the parts of the cached input that were audio and images.
        input_audio_tokens, output_audio_tokens: the parts that were audio; in the prompt, what no cache had.
        input_image_tokens, output_image_tokens: the parts that were images; in the prompt, what no cache had.
        images: how many images were made.
        searches: how many web searches were made.
        file_searches: how many searches of a vector store were made, where each is billed.
        containers: how many containers ran code, where each is billed.
        input_characters: letters that were sent to be spoken, where that is what is billed.
        input_ms, output_ms: milliseconds of sound or film that were sent and made, where that is what is billed.
        service_tier: the tier that served; None: the one asked for.
        exact: False if a count was guessed rather than reported, or cut, or if no such service tier is known.

    Raises:
        ConfigurationError: for a count that is negative or not a whole number.
    """

    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    input_image_tokens: int = 0
    output_image_tokens: int = 0
    cached_audio_tokens: int = 0
    cached_image_tokens: int = 0
    images: int = 0
    searches: int = 0
    file_searches: int = 0
    containers: int = 0
    input_characters: int = 0
    input_ms: int = 0
    output_ms: int = 0
    service_tier: str | None = None
    exact: bool = True

    def __post_init__(self) -> None:
        counts = (
            self.input_tokens, self.cached_input_tokens, self.cache_write_tokens, self.cache_write_1h_tokens,
            self.output_tokens, self.reasoning_tokens, self.input_audio_tokens, self.output_audio_tokens,
            self.input_image_tokens, self.output_image_tokens, self.cached_audio_tokens, self.cached_image_tokens,
            self.images, self.searches, self.file_searches, self.containers, self.input_characters, self.input_ms,
            self.output_ms,
        )  # fmt: skip
        for count in counts:
            if type(count) is not int or not 0 <= count <= MAX_TOKENS:
                self._refuse_counts()
        checked_text("Usage", "service_tier", self.service_tier)
        if type(self.exact) is not bool:
            raise ConfigurationError(f"Usage.exact is True or False, not {self.exact!r:.60}")
        if self.service_tier is not None and self.service_tier.lower() not in SERVICE_TIERS:
            object.__setattr__(self, "exact", False)
        if (
            self.cached_input_tokens + self.cache_write_tokens + self.cache_write_1h_tokens > self.input_tokens
            or self.cached_audio_tokens + self.cached_image_tokens > self.cached_input_tokens
            or self.input_audio_tokens > self.input_tokens
            or self.input_image_tokens > self.input_tokens
            or self.reasoning_tokens > self.output_tokens
            or self.output_audio_tokens > self.output_tokens
            or self.output_image_tokens > self.output_tokens
        ):
            self._cut()

    def _cut(self) -> None:
        """Cut the parts to what they are parts of."""
        for whole, shares in _SHARES.items():
            left = getattr(self, whole)
            for name in shares:
                left -= self._cut_to(name, left)
        for whole, parts in _PARTS.items():
            for name in parts:
                self._cut_to(name, getattr(self, whole))
        object.__setattr__(self, "exact", False)

    def _cut_to(self, name: str, most: int) -> int:
        count: int = min(getattr(self, name), most)
        object.__setattr__(self, name, count)
        return count

    def _refuse_counts(self) -> None:
        for name in self.__slots__[:19]:
            value = getattr(self, name)
            if value is None:
                raise ConfigurationError(f"Usage.{name} is None; leave out what is not known")
            checked_count("Usage", name, value)

    @property
    def total_tokens(self) -> int:
        """What the meter ``tokens`` counts: input and output."""
        return self.input_tokens + self.output_tokens
