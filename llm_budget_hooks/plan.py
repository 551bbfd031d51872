"""From a call to one command: which budgets match, which accounts they mean, what is asked of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from operator import itemgetter

from llm_budget_hooks import estimates
from llm_budget_hooks.errors import BudgetExceeded, PriceUnknown
from llm_budget_hooks.estimates import StepBudget
from llm_budget_hooks.histories import Histories, answer_key, output_key, step_key
from llm_budget_hooks.keys import DEFAULT_TENANT, IDS, LONGEST_KEPT, digest, hold_key, identity, normalised, tenant_name
from llm_budget_hooks.models import Basis, Budget, Call, Policy
from llm_budget_hooks.models.trail import run_facts
from llm_budget_hooks.money import parse_nusd
from llm_budget_hooks.pricing import Price, PriceBook
from llm_budget_hooks.transitions import MAX_AMOUNT, NO_LIMIT, Kind, Meter, Mode, Read, Reserve, Rule, Shape, Terms
from llm_budget_hooks.windows import Window

_METERS = {"usd": 1, "tokens": 2, "calls": 3, "utterances": 4, "in_flight": 5}
_SCOPES = {"global": 0, "tenant": 1, "user": 2, "answer": 3}
_MAX_SHAPES = 4096
_MADE_UP = "-"


def _none(_: tuple[int, ...]) -> tuple[int, ...]:
    return ()


def _picker(meters: Sequence[int]) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    """What takes the amount of each budget out of the amounts by meter."""
    if len(meters) > 1:
        return itemgetter(*meters)
    return (lambda by_meter: (by_meter[meters[0]],)) if meters else _none


@dataclass(frozen=True, slots=True)
class _Line:
    budget: Budget
    window: Window | None
    meter: int
    kind: int
    scope: int
    limit: int
    prefix: str

    def rule(self, now_ms: int) -> Rule:
        ends = self.window.bounds(now_ms)[1] if self.window and self.kind == Kind.CALENDAR else 0
        length = self.window.length_ms if self.window else 0
        base = self.budget.limit_units if self.window and self.meter <= Meter.TOKENS else 0
        return Rule(self.budget.name, self.budget.scope, self.meter, self.kind, self.limit, ends, length, base)

    def suffix(self, now_ms: int) -> str:
        return f":{self.window.bounds(now_ms)[0] // 1000:x}" if self.window and self.kind == Kind.CALENDAR else ""


@dataclass(slots=True)
class _Compiled:
    """The lines of one kind of call, and their shape for as long as no window ends."""

    lines: tuple[_Line, ...]
    parts: tuple[tuple[int, str], ...] = ()
    amounts: Callable[[tuple[int, ...]], tuple[int, ...]] = _none
    price: Price | None = None
    shape: Shape = field(default_factory=lambda: Shape(()))
    from_ms: int = 0
    until_ms: int = 0
    usd: bool = False
    tokens: bool = False
    own_modes: bool = False
    tenant: bool = False
    user: bool = False
    bound: bool = False
    ceiling: bool = False
    answer: bool = False

    @property
    def learns(self) -> bool:
        """Whether a history tells what such a call costs, or what it adds to an answer."""
        return self.ceiling or not self.bound

    def keys(self, hashes: tuple[str, str], utterance: str) -> tuple[str, ...]:
        """The accounts of a call; an answer has none outside of an utterance."""
        ids = ("", *hashes, utterance)
        if utterance or not self.answer:
            return tuple([ids[scope] + tail for scope, tail in self.parts])
        return tuple([ids[scope] + tail if scope < 3 else "" for scope, tail in self.parts])

    def scopes(self, hashes: tuple[str, str]) -> tuple[str, ...]:
        """The indexes that a hold of such a call is in, the narrowest first."""
        if self.user:
            return (hashes[1], hashes[0], "") if self.tenant else (hashes[1], "")
        return (hashes[0], "") if self.tenant else ("",)

    def at(self, now_ms: int) -> _Compiled:
        if self.from_ms <= now_ms < self.until_ms:
            return self
        bounds = [line.window.bounds(now_ms) for line in self.lines if line.window and line.kind == Kind.CALENDAR]
        parts = tuple((line.scope, line.prefix + line.suffix(now_ms)) for line in self.lines)
        shape = Shape(tuple(line.rule(now_ms) for line in self.lines))
        start = max((b[0] for b in bounds), default=-MAX_AMOUNT)
        end = min((b[1] for b in bounds), default=MAX_AMOUNT)
        return replace(self, parts=parts, shape=shape, from_ms=start, until_ms=end)


@dataclass(slots=True)
class Plan:
    """One call, planned.

    Attributes:
        command: what to ask of the store.
        id: of the hold, as the caller knows it.
        estimate_nusd: the call's one estimate under the policy's mode.
        basis: where it came from.
        price: the model's price, None if it is not known.
        histories: those that the call's end adds to: of output tokens, of the step's cost and of the answer's; empty
            where none is kept.
    """

    command: Reserve
    id: str
    estimate_nusd: int
    basis: Basis
    price: Price | None
    histories: tuple[str, str, str] | None = None


class Planner:
    """Plans the calls of one policy.

    Attributes:
        policy, prices: the rules and the price book.
        terms: the policy's intervals, as stores need them.
        histories: what is known of the last runs.
        revision: the number of the settings that are in force.
        counts_entries, limits_answers: whether any budget of anybody does.
    """

    def __init__(self, policy: Policy, prices: PriceBook, *, outbox: bool = False) -> None:
        self.policy = policy
        self.prices = prices
        self.terms = replace(terms_of(policy), outbox_max=policy.outbox_max)
        self._followed = outbox
        self._steps = {name: StepBudget(parse_nusd(value), policy.step_tokens) for name, value in policy.steps.items()}
        self._step = StepBudget(parse_nusd(policy.step_budget), policy.step_tokens)
        self._flat = None if policy.unknown_price == "refuse" else parse_nusd(policy.unknown_price)
        self._compiled: dict[tuple[str, str | None, str], _Compiled] = {}
        self._lines: dict[str, tuple[tuple[_Line, ...], int]] = {}
        self._limits: Mapping[str, Mapping[str, tuple[int, int]]] = {}
        self._seen_ms = 0
        self._identified = policy.missing_identity == "deny"
        self.histories = Histories()
        self.revision = 0
        budgets = [budget for _, budget in policy.written()]
        self.counts_entries = any(budget.count == "entry" for budget in budgets)
        self.limits_answers = any(budget.scope == "answer" for budget in budgets)

    def override(self, revision: int, limits: Mapping[str, Mapping[str, tuple[int, int]]]) -> None:
        """Plan with other limits from now on.

        Args:
            revision: the number of the settings that these are.
            limits: by tenant (empty for budgets of scope global) and budget: the limit and until when, 0 for ever.
        """
        self._limits = limits
        self._lines.clear()
        self._compiled.clear()
        self.revision = revision

    def plan(self, call: Call, now_ms: int, mode: int = Mode.HOLD, actual: tuple[int, int] | None = None) -> Plan:
        """Plan a reserve, a check or a charge.

        Args:
            call: what is asked.
            now_ms: the store's time, as far as it is known.
            mode: what to do if all agree.
            actual: nano-dollars and tokens to charge, instead of an estimate.

        Raises:
            PriceUnknown: a budget counts money and no price is known for the model.
            BudgetExceeded: the call has no identity, and the policy wants one.
            ConfigurationError: the estimate is above what one call may be.
        """
        tenant, user = normalised(call.tenant), normalised(call.user)
        if self._identified and not (tenant and user):
            raise unidentified()
        tenant = tenant or DEFAULT_TENANT
        self._seen_ms = now_ms
        compiled = self._compile(tenant, call.feature, call.model, now_ms)
        hashes = identity(tenant, user)
        utterance = digest("a", tenant, user, call.utterance) if call.utterance else ""
        price, kept, guess, read, since_ms = None, None, None, "", MAX_AMOUNT
        if actual is None:
            price = compiled.price
            if price is not None and price.varies:
                price = price.now(now_ms)
            if compiled.learns:
                kept = self._histories(call, compiled, tenant, price)
                if kept[0]:
                    guess, read, since_ms = self._guess(kept[0], call.step or call.model, now_ms)
            nusd, tokens, basis = self._estimate(call, compiled, price, guess)
        else:
            (nusd, tokens), basis = actual, "actual"
        amounts = self._amounts(call, compiled, price, nusd, tokens, actual, guess)
        if call.id is None:
            id = held = IDS.next()
            content = _MADE_UP
        else:
            id, held, content = call.id, hold_key(call.id), _content(call, tenant, user)
        command = Reserve(
            held, content, compiled.shape, compiled.keys(hashes, utterance), amounts, compiled.scopes(hashes),
            utterance, self.terms, compiled.from_ms, compiled.until_ms, mode,
            self._note(call, tenant, user, nusd, "amount" if actual else basis, price), None, self.revision,
            "", read, since_ms,
        )  # fmt: skip
        return Plan(command, id, nusd, basis, price, kept)

    def _guess(self, history: str, step: str, now_ms: int) -> tuple[int | None, str, int]:
        """The percentile of a history, and what the store is to read along where that is old: see `Reserve`."""
        guess, old = self.histories.known(history, step, now_ms)
        if not old:
            return guess, "", MAX_AMOUNT
        return guess, history, self.histories.since_ms(step, now_ms) if guess is None else MAX_AMOUNT

    def _note(self, call: Call, tenant: str, user: str, nusd: int, basis: Basis, price: Price | None) -> str:
        """What the hold tells of the call: all that the ledger wants, where there is one."""
        key = call.model if price is None else price.model
        if self._followed:
            return run_facts(
                tenant, user, call.utterance, call.feature, call.step, call.model, nusd, basis, key,
                call.service_tier,
            )  # fmt: skip
        if call.service_tier is not None:
            return f"{call.model}\n{key}\n{call.service_tier}"
        return key if key == call.model else f"{call.model}\n{key}"

    def _histories(self, call: Call, compiled: _Compiled, tenant: str, price: Price | None) -> tuple[str, str, str]:
        step, feature, model = call.step or call.model, call.feature or "", price.model if price else call.model
        output = "" if compiled.bound or call.amount_nusd is not None else output_key(tenant, feature, step, model)
        if not compiled.ceiling:
            return output, "", ""
        return output, step_key(tenant, feature, step), "" if call.utterance else answer_key(tenant, feature)

    def entry(self, call: Call, now_ms: int) -> Plan | None:
        """Plan the counting of an utterance that begins; None if no budget counts it then.

        Args:
            call: whose utterance it is, and of which feature.
            now_ms: the store's time, as far as it is known.
        """
        tenant, user = tenant_name(call.tenant), normalised(call.user)
        found, until_ms = self._of(tenant, now_ms)
        lines = [n for n in found if n.budget.count == "entry" and self._covers(n, call.feature, call.model)]
        if not lines:
            return None
        compiled = self._summary(sorted(lines, key=self._report_order)).at(now_ms)
        hashes, utterance = identity(tenant, user), digest("a", tenant, user, call.utterance or "")
        command = Reserve(
            "", "", compiled.shape, compiled.keys(hashes, utterance), (1,) * len(lines),
            compiled.scopes(hashes), utterance, self.terms, compiled.from_ms, min(compiled.until_ms, until_ms),
            Mode.ENTER, "", None, self.revision,
        )  # fmt: skip
        return Plan(command, "", 0, "bound", None)

    def read(self, tenant: str | None, user: str | None, now_ms: int) -> tuple[Read, tuple[_Line, ...]]:
        """Plan a reading of all budgets that are about a tenant and a user; without a tenant, the global ones."""
        name = tenant_name(tenant)
        scopes = {"global"} | ({"tenant"} if tenant is not None else set()) | ({"user"} if user is not None else set())
        lines = tuple(line for line in self._of(name, now_ms)[0] if line.budget.scope in scopes)
        compiled = self._summary(lines).at(now_ms)
        hashes = identity(name, normalised(user))
        keys = compiled.keys(hashes, "")
        command = Read(
            compiled.shape, keys, compiled.scopes(hashes), self.terms, "", compiled.from_ms, compiled.until_ms
        )
        return command, lines

    def answer_lines(self, tenant: str | None, feature: str | None) -> tuple[_Line, ...]:
        """The ceilings of an answer of a feature."""
        lines = self._of(tenant_name(tenant), self._seen_ms)[0]
        return tuple(n for n in lines if n.scope == 3 and (not n.budget.features or feature in n.budget.features))

    def read_answer(
        self, tenant: str | None, user: str | None, feature: str | None, utterance: str
    ) -> tuple[Read, tuple[_Line, ...]]:
        """Plan a reading of the answer budgets of an utterance."""
        name, who = tenant_name(tenant), normalised(user)
        lines = self.answer_lines(tenant, feature)
        compiled = self._summary(lines).at(0)
        key, hashes = digest("a", name, who, utterance), identity(name, who)
        command = Read(compiled.shape, compiled.keys(hashes, key), compiled.scopes(hashes), self.terms, key)
        return command, lines

    def price(self, model: str) -> Price | None:
        """The price of a model, None if it is not known."""
        try:
            return self.prices.price(model)
        except PriceUnknown:
            return None

    def windows(self, tenant: str | None) -> dict[str, Window | None]:
        """The window of each of a tenant's budgets, by the budget's name."""
        lines, _ = self._of(tenant_name(tenant), self._seen_ms)
        return {line.budget.name: line.window for line in lines}

    def ends(self, tenant: str | None, now_ms: int) -> dict[str, tuple[int, int]]:
        """When limits end that were set for a tenant until some instant, and the policy's own in their place."""
        name = tenant_name(tenant)
        ends = {}
        for budget in self.policy.budgets_of(name, switched_off=True) if self._limits else ():
            whose = "" if budget.scope == "global" else name
            _, until_ms = self._limits.get(whose, {}).get(budget.name, (0, 0))
            if until_ms > now_ms:
                ends[budget.name] = (until_ms, budget.limit_units)
        return ends

    def planned_nusd(self, tenant: str | None, feature: str | None, steps: Sequence[str], now_ms: int) -> int:
        """What an answer of these steps is expected to cost: the sum of the percentiles of their costs.

        A step with fewer than five runs counts with its budget.
        """
        keys = zip(steps, self.step_keys(tenant, feature, steps), strict=True)
        costs = [(step, self.histories.p90(key, step, now_ms)) for step, key in keys]
        return sum(self._steps.get(step, self._step).nusd if cost is None else cost for step, cost in costs)

    def step_keys(self, tenant: str | None, feature: str | None, steps: Iterable[str]) -> tuple[str, ...]:
        """The histories of what some steps cost."""
        name = tenant_name(tenant)
        return tuple([step_key(name, feature or "", step) for step in steps])

    def _of(self, tenant: str, now_ms: int) -> tuple[tuple[_Line, ...], int]:
        """The budgets that bind a tenant, and until when they are so."""
        own = tenant if tenant in self.policy.tenants or tenant in self._limits else ""
        found = self._lines.get(own)
        if found is None or now_ms >= found[1]:
            found = self._lines[own] = self._overridden(own, now_ms)
        return found

    def _overridden(self, tenant: str, now_ms: int) -> tuple[tuple[_Line, ...], int]:
        lines, until_ms = [], MAX_AMOUNT
        for budget in self.policy.budgets_of(tenant, switched_off=True):
            whose = "" if budget.scope == "global" else tenant
            limit, ends_ms = self._limits.get(whose, {}).get(budget.name, (None, 0))
            if limit is not None and (not ends_ms or now_ms < ends_ms):
                budget = budget.limited(limit)
                until_ms = min(until_ms, ends_ms or MAX_AMOUNT)
            if budget.limit_units:
                lines.append(_line(budget, self.policy.timezone))
        return tuple(lines), until_ms

    def _compile(self, tenant: str, feature: str | None, model: str, now_ms: int) -> _Compiled:
        own = tenant if tenant in self.policy.tenants or tenant in self._limits else ""
        key = (own, feature, model)
        compiled = self._compiled.get(key)
        if compiled is not None and compiled.from_ms <= now_ms < compiled.until_ms:
            return compiled
        found, until_ms = self._of(tenant, now_ms)
        covering = (self._cut(line, tenant, model) for line in found if self._covers(line, feature, model))
        lines = sorted(covering, key=self._report_order)
        if len(self._compiled) >= _MAX_SHAPES:
            self._compiled.clear()
        compiled = self._summary(lines).at(now_ms)
        compiled.until_ms = min(compiled.until_ms, until_ms)
        compiled.price = self.price(model)
        if len(model) + len(feature or "") <= LONGEST_KEPT:
            self._compiled[key] = compiled
        return compiled

    def _summary(self, lines: Iterable[_Line]) -> _Compiled:
        found = tuple(lines)
        modes = {line.budget.estimate or self.policy.estimate for line in found if line.meter <= Meter.TOKENS}
        modes |= {self.policy.estimate} if modes else set()
        return _Compiled(
            found,
            amounts=_picker([line.meter for line in found]),
            usd=any(line.meter == Meter.USD for line in found),
            tokens=any(line.meter == Meter.TOKENS for line in found),
            own_modes=any(line.budget.estimate is not None for line in found),
            tenant=any(line.scope == 1 for line in found),
            user=any(line.scope >= 2 for line in found),
            bound=modes <= {"bound"},
            answer=any(line.scope == 3 for line in found),
            ceiling=any(line.scope == 3 and line.meter == Meter.USD for line in found),
        )

    def _cut(self, line: _Line, tenant: str, model: str) -> _Line:
        """A spend or token budget with a window, as far as its cutoff lets this model go."""
        if line.meter > Meter.TOKENS or line.window is None:
            return line
        own = self.policy.tenants.get(tenant)
        cutoff = own.cutoff if own is not None and own.cutoff is not None and line.scope else self.policy.cutoff
        if cutoff == "warn":
            return replace(line, limit=NO_LIMIT)
        if cutoff == "soft" and self.is_cheap(model):
            return replace(line, limit=min(int(line.limit * Decimal(str(self.policy.soft_ceiling))), NO_LIMIT - 1))
        return line

    def is_cheap(self, model: str) -> bool:
        """Whether a model is of the tier that survives a soft cutoff."""
        return self.prices.is_one_of(model, self.policy.tiers.get("cheap", ()))

    def _covers(self, line: _Line, feature: str | None, model: str) -> bool:
        return line.budget.covers(feature, model, self.prices.is_one_of)

    def _report_order(self, line: _Line) -> tuple[bool, bool, int]:
        counted = line.meter > Meter.TOKENS
        return line.scope == 3, counted != (self.policy.report_first == "rates"), line.scope

    def _estimate(
        self, call: Call, compiled: _Compiled, price: Price | None, guess: int | None
    ) -> tuple[int, int, Basis]:
        step = self._steps.get(call.step or call.model, self._step)
        mode = self.policy.estimate
        nusd, tokens = 0, 0
        basis: Basis = "bound"
        if compiled.usd or call.amount_nusd is not None or price is not None:
            try:
                nusd, basis = estimates.usd(call, price, mode, step, self._flat, guess)
            except PriceUnknown:
                if compiled.usd:
                    raise
        if compiled.tokens:
            tokens = estimates.tokens(call, price, mode, step, guess)
        return nusd, tokens, basis

    def _amounts(
        self,
        call: Call,
        compiled: _Compiled,
        price: Price | None,
        nusd: int,
        tokens: int,
        actual: tuple[int, int] | None,
        guess: int | None,
    ) -> tuple[int, ...]:
        if compiled.own_modes and actual is None:
            return tuple(self._amount(call, line, price, nusd, tokens, guess) for line in compiled.lines)
        return compiled.amounts((0, nusd, tokens, 1, 1, 1))

    def _amount(self, call: Call, line: _Line, price: Price | None, nusd: int, tokens: int, guess: int | None) -> int:
        mode = line.budget.estimate
        step = self._steps.get(call.step or call.model, self._step)
        if line.meter == Meter.USD:
            return nusd if mode is None else estimates.usd(call, price, mode, step, self._flat, guess)[0]
        if line.meter == Meter.TOKENS:
            return tokens if mode is None else estimates.tokens(call, price, mode, step, guess)
        return 1


def terms_of(policy: Policy) -> Terms:
    """The intervals of a policy in milliseconds."""
    return Terms(
        timeout_ms=_ms(policy.reservation_timeout),
        remember_ms=_ms(policy.remember),
        utterance_timeout_ms=_ms(policy.utterance_timeout),
        utterance_max_calls=policy.utterance_max_calls,
    )


def _ms(interval: timedelta) -> int:
    return round(interval.total_seconds() * 1000)


def unidentified() -> BudgetExceeded:
    """The refusal of a call that does not say whose it is."""
    return BudgetExceeded(
        'The call names no tenant or no user, and the policy says missing_identity = "deny".',
        code="identity_missing",
        public_message="Please sign in.",
        http_status=403,
    )


def _line(budget: Budget, zone: str) -> _Line:
    window = Window.parse(budget.window, zone)
    kinds = {"calendar": Kind.CALENDAR, "fixed": Kind.FIXED, "rolling": Kind.ROLLING}
    kind = kinds[window.kind] if window else Kind.ANSWER if budget.scope == "answer" else Kind.GAUGE
    if budget.meter == "in_flight" and budget.scope != "answer":
        kind = Kind.GAUGE
    print8 = digest("b", budget.name, budget.scope, budget.meter, window.key if window else "")[:8]
    meter, scope = _METERS[budget.meter], _SCOPES[budget.scope]
    return _Line(budget, window, meter, int(kind), scope, budget.limit_units, f".{print8}")


def _content(call: Call, tenant: str, user: str) -> str:
    facts = (
        call.model, call.input_tokens, call.max_output_tokens, call.step, call.feature, call.utterance,
        call.amount_nusd, call.service_tier, call.writes_cache, call.audio,
    )  # fmt: skip
    return digest("c", tenant, user, repr(facts))
