"""The rules, as people write them: `Policy` and `Budget`, from TOML, a dict, or Python."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.money import MAX_EXACT, parse_limit, parse_nusd, to_decimal
from llm_budget_hooks.windows import Window

Scope = Literal["global", "tenant", "user", "answer"]
Meter = Literal["usd", "tokens", "calls", "utterances", "in_flight"]
Cutoff = Literal["hard", "soft", "warn"]
EstimateMode = Literal["auto", "bound", "p90"]

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,20})\s*(ms|s|m|h|d)")
_LONGEST_MS = 366 * 86_400_000
_MOST_LINES = 20


def _duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        made = value
    else:
        match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f'a duration is a text such as "10m" (ms, s, m, h, d), not {value!r}')
        made = timedelta(milliseconds=min(int(match[1]) * _UNITS_MS[match[2]], _LONGEST_MS + 1))
    if not timedelta(milliseconds=1) <= made <= timedelta(milliseconds=_LONGEST_MS):
        raise ValueError(f"a duration is from 1 ms to 366 days, not {value!r}")
    return made


def _dollars(value: object) -> Decimal:
    return to_decimal(parse_nusd(value))


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Dollars = Annotated[Decimal, BeforeValidator(_dollars)]


def _whole(value: object) -> object:
    if isinstance(value, (bool, float)):
        raise ValueError(f"a whole number, not {value!r}")  # noqa: TRY004 - pydantic reports ValueErrors with their place
    return value


Whole = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=MAX_EXACT)]


def described(error: ValidationError, source: str) -> ConfigurationError:
    """Pydantic's findings as one error that names the place of each in the file or the object."""
    lines = []
    for finding in error.errors(include_url=False):
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in finding["loc"])
        text = "unknown key" if finding["type"] == "extra_forbidden" else finding["msg"].removeprefix("Value error, ")
        inner = finding.get("ctx", {}).get("error")
        if isinstance(inner, ConfigurationError):
            lines += [f"{place}.{line.partition(': ')[2]}" for line in str(inner).splitlines()]
        else:
            lines.append(f"{place}: {text}" if place else text)
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"and {len(lines) - _MOST_LINES} more places"]
    return ConfigurationError("\n".join(f"{source}: {line.removeprefix('.')}" for line in lines))


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, ignored_types=(cached_property,)
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise described(error, type(self).__name__) from None


class Budget(_Model):
    """A rule: whom it is about, what it counts, how much of it, and in which window.

    Attributes:
        name: unique in the policy; default ``scope-meter-window[-feature]``.
        scope: ``global``, ``tenant``, ``user`` (within its tenant) or ``answer``.
        meter: ``usd``, ``tokens``, ``calls``, ``utterances`` or ``in_flight``.
        limit: `Decimal` dollars for ``usd``, a whole number for all others; 0 switches the budget off.
        window: ``minute`` to ``month``, ``rolling:60s`` or ``fixed:24h``; none for ``in_flight`` and scope ``answer``.
        features: only these features; empty: all.
        models: only models whose canonical name, or the name that the call uses, matches one of these patterns;
            empty: all.
        count: ``entry`` counts an utterance when it begins, even if no model runs.
        managed: only an operator may override it.
        estimate: this budget's own estimate mode; None: the policy's.

    Raises:
        ConfigurationError: for an unknown word, a bad amount, or a combination that has no meaning.
    """

    scope: Scope
    meter: Meter = "usd"
    limit: Decimal | int
    window: str | None = None
    name: str = ""
    features: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    count: Literal["call", "entry"] = "call"
    managed: bool = False
    estimate: EstimateMode | None = None

    @field_validator("limit", mode="before")
    @classmethod
    def _limit(cls, value: object, info: ValidationInfo) -> Decimal | int:
        if info.data.get("meter", "usd") == "usd":
            return to_decimal(parse_limit(value))
        if type(value) is not int:
            raise ValueError(f"a limit of {info.data.get('meter')} is a whole number, not {value!r}")
        if not 0 <= value < MAX_EXACT:
            raise ValueError(f"a limit is from 0 to {MAX_EXACT - 1}, not {value}")
        return value

    @field_validator("window")
    @classmethod
    def _window(cls, value: str | None) -> str | None:
        if value is not None:
            Window.parse(value, "UTC")
        return value

    @model_validator(mode="after")
    def _combination(self) -> Self:
        if self.scope == "answer" and self.window is not None:
            raise ValueError("a budget of scope answer has no window: an answer is its own")
        if self.scope == "answer" and self.meter == "utterances":
            raise ValueError("an answer is one utterance: the meter utterances has no meaning in scope answer")
        if self.meter == "in_flight" and self.window is not None:
            raise ValueError("the meter in_flight counts open holds and has no window")
        if self.window is None and self.scope != "answer" and self.meter != "in_flight":
            raise ValueError(f'a {self.scope} budget of {self.meter} needs a window, such as window = "day"')
        if self.count == "entry" and self.meter != "utterances":
            raise ValueError('count = "entry" goes with meter = "utterances"')
        if any(not letter.isprintable() for letter in self.name) or len(self.name) > 100:
            raise ValueError("a budget's name is up to 100 printable letters")
        if not self.name:
            object.__setattr__(
                self, "name", "-".join((self.scope, self.meter, *filter(None, (self.window,)), *self.features))
            )
        return self

    @cached_property
    def limit_units(self) -> int:
        """The limit in the meter's own unit: nano-dollars for ``usd``, else a count."""
        return parse_nusd(self.limit) if self.meter == "usd" else int(self.limit)

    @property
    def subject(self) -> str:
        """What its limit is a limit of; an override that was made for another subject does not count for it."""
        return f"{self.scope} {self.meter} {self.window or ''}".rstrip()

    def limited(self, units: int) -> Budget:
        """The same budget with another limit, in the meter's own unit."""
        changed = self.model_copy(update={"limit": to_decimal(units) if self.meter == "usd" else units})
        changed.__dict__.pop("limit_units", None)  # the copy has brought the old limit along
        return changed

    def covers(self, feature: str | None, model: str, is_one_of: Callable[[str, Sequence[str]], bool]) -> bool:
        """Whether a call of this feature and model counts against the budget.

        Args:
            feature, model: of the call, the model as the call names it.
            is_one_of: whether the model that a name means is one of some patterns, as the price book says.
        """
        if self.features and feature not in self.features:
            return False
        if not self.models:
            return True
        return any(fnmatchcase(model.lower(), name.lower()) for name in self.models) or is_one_of(model, self.models)


class TenantPolicy(_Model):
    """What is different for one tenant.

    Attributes:
        cutoff: this tenant's own cutoff; None: the policy's.
        budgets: replace those of the same name, and are added where there is none.
    """

    cutoff: Cutoff | None = None
    budgets: tuple[Budget, ...] = ()

    @field_validator("budgets")
    @classmethod
    def _not_global(cls, budgets: tuple[Budget, ...]) -> tuple[Budget, ...]:
        for budget in budgets:
            if budget.scope == "global":
                raise ValueError(f"budget {budget.name!r}: a tenant's budget may not be global")
        return _unique(budgets)


def _unique(budgets: tuple[Budget, ...]) -> tuple[Budget, ...]:
    seen: set[str] = set()
    for budget in budgets:
        if budget.name in seen:
            raise ValueError(f"two budgets are named {budget.name!r}: give one of them a name of its own")
        seen.add(budget.name)
    return budgets


class Identity(_Model):
    """Which of the fields that a LiteLLM proxy has authenticated name the payer; the first that is set counts.

    Attributes:
        tenant: fields of ``user_api_key_dict``, such as ``org_id`` and ``team_id``; ``metadata.NAME`` is one of the
            key's own metadata.
        user: the same for the user within the tenant.
    """

    tenant: tuple[str, ...] = ("org_id", "team_id")
    user: tuple[str, ...] = ("user_id", "api_key")


class WebhookRule(_Model):
    """Where alerts are posted, beside the log and `on_alert`; see `llm_budget_hooks.alerts.Webhook`.

    Attributes:
        url: ``https://...``; ``http://`` only where private addresses are allowed.
        secret_variable: the environment variable with the secret that requests are signed with.
        allow_private: also connect to loopback, private and link-local addresses.
    """

    url: str
    secret_variable: str = "LLM_BUDGET_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
    allow_private: bool = False


class Policy(_Model):
    """All rules of one namespace. The file form is TOML with the same keys.

    Attributes:
        namespace: prefix of all keys; processes that share a store and a namespace share balances.
        timezone: the zone of calendar windows.
        estimate: ``auto``, ``bound`` or ``p90``; a budget may set its own.
        step_budget: dollars held on top of its input for a step without history and without an output bound.
        step_tokens: the same for budgets of tokens.
        unknown_price: ``refuse``, or a flat amount of dollars per call.
        missing_identity: ``shared``, or ``deny``.
        store_timeout: one total deadline for a store operation, waits and connects included.
        reservation_timeout: how long a hold may stay open before it expires and is charged.
        utterance_timeout: how long after its last call an utterance is still the same.
        utterance_max_calls: after so many calls an utterance id is a new utterance.
        report_first: which refusal is named when both deny, ``spend`` or ``rates``.
        remember: how long ended holds are known.
        cached_discount: price of cached input where none is known, as a share of the input price.
        prices: own prices by model, see `llm_budget_hooks.pricing`.
        aliases: other names for models.
        identity: which fields of a LiteLLM proxy's authentication name tenant and user.
        webhook: where alerts are posted; None: nowhere.
        steps: dollars held for a named step, instead of `step_budget`.
        budgets: the rules, in order.
        tenants: what is different for single tenants.

    Raises:
        ConfigurationError: naming every place that is wrong.
    """

    namespace: str = "default"
    timezone: str = "UTC"
    cutoff: Cutoff = "hard"
    estimate: EstimateMode = "auto"
    step_budget: Dollars = Decimal("0.005")
    step_tokens: Whole = 4000
    unknown_price: Literal["refuse"] | Dollars = "refuse"
    missing_identity: Literal["shared", "deny"] = "shared"
    on_store_error: Literal["allow", "bounded", "deny"] = "bounded"
    degraded_allowance: Dollars = Decimal("0.10")
    store_timeout: Duration = timedelta(seconds=1)
    reservation_timeout: Duration = timedelta(minutes=10)
    utterance_timeout: Duration = timedelta(minutes=10)
    utterance_max_calls: Annotated[Whole, Field(ge=1)] = 200
    report_first: Literal["spend", "rates"] = "spend"
    alert_at: tuple[Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)], ...] = (0.8,)
    clamp: bool = False
    soft_ceiling: Annotated[float, Field(ge=1, le=100)] = 1.5
    cached_discount: Annotated[Decimal, Field(ge=0, le=1)] = Decimal(1)
    remember: Duration = timedelta(hours=1)
    outbox_max: Whole = 1_000_000
    allow_eviction: bool = False
    prices: dict[str, dict[str, Any]] = Field(default_factory=dict)
    aliases: dict[str, str] = Field(default_factory=dict)
    identity: Identity = Field(default_factory=Identity)
    webhook: WebhookRule | None = None
    tiers: dict[str, tuple[str, ...]] = {"cheap": ("*haiku*", "*-mini*", "*-nano*")}
    steps: dict[str, Dollars] = Field(default_factory=dict)
    budgets: tuple[Budget, ...] = ()
    tenants: dict[str, TenantPolicy] = Field(default_factory=dict)

    @field_validator("namespace")
    @classmethod
    def _namespace(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,32}", value):
            raise ValueError(f"a namespace is 1 to 32 letters, digits, '_', '.' or '-', not {value!r}")
        return value

    @field_validator("timezone")
    @classmethod
    def _timezone(cls, value: str) -> str:
        Window.parse("day", value)
        return value

    @field_validator("cached_discount", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        return Decimal(str(value)) if isinstance(value, float) else value

    @field_validator("unknown_price", mode="before")
    @classmethod
    def _unknown_price(cls, value: object) -> object:
        return value if value == "refuse" else _dollars(value)

    @field_validator("budgets")
    @classmethod
    def _budgets(cls, budgets: tuple[Budget, ...]) -> tuple[Budget, ...]:
        return _unique(budgets)

    @classmethod
    def load(cls, source: str | PathLike[str] | Mapping[str, Any] | Policy) -> Policy:
        """A policy from a TOML file, a dict with the same keys, or a Policy.

        Raises:
            ConfigurationError: the file cannot be read, is no TOML, or a rule is wrong; the place is named.
        """
        if isinstance(source, Policy):
            return source
        if isinstance(source, Mapping):
            return cls(**source)
        path = Path(source)
        values = _read_toml(path)
        try:
            return cls(**values)
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace(cls.__name__, path.name)) from None

    @classmethod
    def preset(cls, name: str, *, per: Literal["global", "tenant", "user"] | None = None) -> Policy:
        """A policy that comes with this package: ``zeno``, ``llm-budget-cap``, ``pact`` or ``daily-tokens``.

        Args:
            name: of the preset; ``llm-budget check --preset NAME --print`` shows it as a file to start from.
            per: whom the one counter of ``llm-budget-cap`` is for; None: everybody together.

        Raises:
            ConfigurationError: there is no such preset; the message lists them.
        """
        from llm_budget_hooks.presets import preset_text

        return cls(**tomllib.loads(preset_text(name, per)))

    def written(self) -> Iterator[tuple[str | None, Budget]]:
        """Every budget as it is written, with the tenant whose own it is: first everybody's, then each tenant's."""
        yield from ((None, budget) for budget in self.budgets)
        for name, tenant in self.tenants.items():
            yield from ((name, budget) for budget in tenant.budgets)

    def with_limits(self, limits: Mapping[tuple[str, str], int]) -> Policy:
        """The same policy with other limits.

        Args:
            limits: by tenant (empty for budgets of scope ``global``) and budget, in the meter's own unit.
        """
        tenants = dict(self.tenants)
        for name in {tenant for tenant, _ in limits if tenant}:
            own = tenants.get(name) or TenantPolicy()
            changed = [b.limited(limits[name, b.name]) for b in self.budgets_of(name, switched_off=True)
                       if b.scope != "global" and (name, b.name) in limits]  # fmt: skip
            kept = [b for b in own.budgets if (name, b.name) not in limits]
            tenants[name] = own.model_copy(update={"budgets": (*kept, *changed)})
        budgets = tuple(
            b.limited(limits["", b.name]) if b.scope == "global" and ("", b.name) in limits else b for b in self.budgets
        )
        return self.model_copy(update={"budgets": budgets, "tenants": tenants})

    def budgets_of(self, tenant: str, *, switched_off: bool = False) -> tuple[Budget, ...]:
        """The budgets that bind a tenant, in policy order; those switched off are left out unless asked for."""
        own = self.tenants.get(tenant)
        replaced = {b.name: b for b in own.budgets} if own is not None else {}
        merged = [replaced.pop(b.name, b) for b in self.budgets]
        return tuple(b for b in (*merged, *replaced.values()) if switched_off or b.limit_units)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode()
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"{path.name or path}: the policy file cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path.name}: this is no TOML ({error})") from None
