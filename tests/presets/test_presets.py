"""Each preset does what the system that it stands for does, as far as the clock of a test can show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, ConfigurationError, Policy, StoreUnavailable, Usage
from llm_budget_hooks.presets import PRESETS, preset_text
from llm_budget_hooks.testing import DelayProxy, RedisServer
from llm_budget_hooks.transitions import Settings, SettingsNow

MODELS = ("gpt-4o-mini", "gpt-4o")
NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@dataclass
class FrozenTime:
    """A clock that stands until it is moved."""

    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, **time: float) -> None:
        self.now += timedelta(**time)


@pytest.fixture
def clock() -> FrozenTime:
    return FrozenTime()


class Opened:
    """Opens engines on one store and clock."""

    def __init__(self, url: str, clock: FrozenTime) -> None:
        self.engines: list[BudgetEngine] = []
        self._url, self._clock = url, clock

    def __call__(self, name: str, *, on_alert: Any = None, **options: Any) -> BudgetEngine:
        policy = Policy.preset(name, **options).model_copy(update={"store_timeout": timedelta(seconds=10)})
        self.engines.append(BudgetEngine.open(self._url, policy=policy, clock=self._clock, on_alert=on_alert))
        return self.engines[-1]


@pytest.fixture
def opened(engine_url: str, clock: FrozenTime) -> Iterator[Opened]:
    made = Opened(engine_url, clock)
    yield made
    for engine in made.engines:
        engine.close()


def paid(engine: BudgetEngine, amount: str, user: str = "u1", **more: Any) -> None:
    engine.charge(Call(model="any", tenant="acme", user=user, amount=amount, **more), cost=amount)


def refusal(engine: BudgetEngine, amount: str = "0.01", user: str = "u1", **more: Any) -> BudgetExceeded:
    with pytest.raises(BudgetExceeded) as caught:
        engine.reserve(Call(model="any", tenant="acme", user=user, amount=amount, **more))
    return caught.value


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_commented_file_that_opens_as_it_is_printed(name: str, tmp_path: Any) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text(preset_text(name), encoding="utf-8")
    assert Policy.load(path) == Policy.preset(name)
    assert path.read_text(encoding="utf-8").startswith(f"# {name}: ")
    BudgetEngine.open("memory://", policy=Policy.preset(name)).close()


def test_an_unknown_preset_is_a_mistake_that_lists_them() -> None:
    with pytest.raises(ConfigurationError, match="zeno, llm-budget-cap, pact, daily-tokens"):
        Policy.preset("zenon")


def test_only_the_preset_with_one_counter_can_be_for_somebody_else() -> None:
    assert [Policy.preset("llm-budget-cap", per=who).budgets[0].scope for who in ("global", "tenant", "user")] == [
        "global",
        "tenant",
        "user",
    ]
    with pytest.raises(ConfigurationError, match="llm-budget-cap"):
        Policy.preset("pact", per="user")
    with pytest.raises(ConfigurationError, match="not 'answer'"):
        Policy.preset("llm-budget-cap", per="answer")  # type: ignore[arg-type]  # what a caller may write


def test_zeno_names_everybodys_budget_before_the_users(opened: Opened) -> None:
    engine = opened("zeno")
    for number in range(25):
        paid(engine, "2", user=f"u{number}")
    both = refusal(engine, user="u3")
    assert (both.budget, both.failed, both.http_status) == ("global-day", ("global-day", "user-day"), 429)


def test_zeno_stops_one_user_with_a_text_that_says_tomorrow(opened: Opened, clock: FrozenTime) -> None:
    engine = opened("zeno")
    paid(engine, "2")
    refused = refusal(engine)
    assert (refused.budget, refused.code) == ("user-day", "spend")
    assert refused.public_message == "Daily limit reached. Try again tomorrow."
    paid(engine, "2", user="u2")
    clock.pass_by(hours=12)
    paid(engine, "2")


def test_zeno_takes_cached_input_at_a_tenth_where_no_price_is_known() -> None:
    policy = Policy.preset("zeno").model_copy(update={"prices": {"own": {"input": 10, "output": 20}}})
    with BudgetEngine.open("memory://", policy=policy) as engine:
        used = Usage(input_tokens=1_000_000, cached_input_tokens=1_000_000)
        settled = engine.settle(engine.reserve(Call(model="own", user="u1", amount="1")), usage=used)
    assert settled.cost == Decimal(1)


def test_zeno_with_a_limit_of_zero_asks_nobody() -> None:
    values = {**Policy.preset("zeno").model_dump(), "budgets": [{"scope": "user", "limit": 0, "window": "day"}]}
    with BudgetEngine.open("memory://", policy=values) as engine:
        assert engine.status(tenant="acme", user="u1") == []
        paid(engine, "1000")


@pytest.mark.parametrize("name", ["zeno", "llm-budget-cap"])
def test_a_store_that_is_away_stops_nobody_says_so_and_is_told_once_it_is_back(
    name: str, redis_server: RedisServer
) -> None:
    with DelayProxy(redis_server.port) as proxy:
        policy = Policy.preset(name).model_copy(update={"store_timeout": timedelta(seconds=0.3)})
        with BudgetEngine.open(proxy.url, policy=policy) as engine:
            paid(engine, "1")
            proxy.stall = True
            held = engine.reserve(Call(model="any", tenant="acme", user="u1", amount="1"))
            assert engine.degraded
            assert engine.settle(held, cost="0.50").pending
            assert {line.spent for line in engine.status("acme", "u1")} == {None}
            proxy.stall = False
            engine.flush()
            assert not engine.degraded
            assert {line.spent for line in engine.status("acme", "u1")} == {Decimal("1.50")}


def test_llm_budget_cap_that_denies_on_a_store_error_raises_one_that_is_typed(redis_server: RedisServer) -> None:
    assert Policy.preset("llm-budget-cap").store_timeout == timedelta(seconds=5)
    with DelayProxy(redis_server.port) as proxy:
        changed = {"store_timeout": timedelta(seconds=0.3), "on_store_error": "deny"}
        policy = Policy.preset("llm-budget-cap").model_copy(update=changed)
        with BudgetEngine.open(proxy.url, policy=policy) as engine:
            proxy.stall = True
            with pytest.raises(StoreUnavailable) as caught:
                engine.reserve(Call(model="any", amount="1"))
            assert (caught.value.code, caught.value.http_status, caught.value.busy) == ("store_unavailable", 503, False)
            proxy.stall = False


def test_llm_budget_cap_charges_a_known_amount_in_one_trip(opened: Opened) -> None:
    engine = opened("llm-budget-cap")
    paid(engine, "1")
    trips: list[object] = []
    ask = engine._ask
    engine._ask = lambda command: trips.append(command) or ask(command)
    paid(engine, "1")
    assert len(trips) == 1
    assert engine.status()[0].spent == 2


def test_llm_budget_cap_counts_from_its_first_use_and_is_never_lengthened(opened: Opened, clock: FrozenTime) -> None:
    engine = opened("llm-budget-cap")
    paid(engine, "4")
    clock.pass_by(hours=23)
    paid(engine, "6", user="u2")
    refused = refusal(engine)
    assert (refused.budget, refused.resets_at) == ("cap", NOON + timedelta(hours=24))
    assert refused.retry_after == 3600
    clock.pass_by(hours=1)
    paid(engine, "10")


def test_llm_budget_cap_for_each_user_keeps_them_apart(opened: Opened) -> None:
    engine = opened("llm-budget-cap", per="user")
    paid(engine, "10")
    paid(engine, "10", user="u2")
    assert refusal(engine).scope == "user"


def test_llm_budget_cap_refunds_and_books_what_came_above_the_hold(opened: Opened) -> None:
    engine = opened("llm-budget-cap")
    call = Call(model="any", amount="5")
    assert engine.settle(engine.reserve(call), cost="1").cost == 1
    assert engine.settle(engine.reserve(call), cost="9.5").overage == Decimal("4.5")
    (cap,) = engine.status()
    assert (cap.spent, cap.reserved, cap.available) == (Decimal("10.5"), 0, 0)
    assert engine.charge(call, cost="1", force=True).status == "settled"


def test_pact_counts_a_fan_out_once_at_the_fifth_layer_and_every_call_at_the_fourth(opened: Opened) -> None:
    engine = opened("pact")
    with engine.utterance(tenant="acme", user="u1", feature="chat"):
        for _ in range(25):
            engine.charge(Call(model="any", amount="0.01"), cost="0.01")
    counted = {line.budget: line.spent for line in engine.status(tenant="acme", user="u1")}
    assert counted["user-utterances"] == 1
    assert counted["tenant-calls"] == 25
    assert counted["tenant-month"] == Decimal("0.25")


def test_pact_refuses_the_21st_utterance_of_a_user_and_the_61st_call_of_a_tenant(
    opened: Opened, clock: FrozenTime
) -> None:
    engine = opened("pact")
    for user in ("u1", "u2", "u3"):
        for _ in range(20):
            paid(engine, "0", user=user)
    assert refusal(engine, "0").failed == ("tenant-calls", "user-utterances")
    assert refusal(engine, "0", user="u4").failed == ("tenant-calls",)
    clock.pass_by(seconds=60, milliseconds=1)
    paid(engine, "0")


def test_pact_has_no_daily_caps_and_alerts_at_four_fifths() -> None:
    policy = Policy.preset("pact")
    assert {b.name for b in policy.budgets} - {b.name for b in policy.budgets_of("acme")} == {"tenant-day", "user-day"}
    assert (policy.alert_at, policy.cutoff) == ((0.8,), "hard")


def test_pact_refuses_at_the_month_and_lets_the_next_one_begin(opened: Opened, clock: FrozenTime) -> None:
    engine = opened("pact")
    paid(engine, "20")
    assert refusal(engine).budget == "tenant-month"
    clock.pass_by(hours=12)
    paid(engine, "20")


def test_pact_stops_an_answer_of_the_feature_ask_at_five_cents(opened: Opened) -> None:
    engine = opened("pact")
    with engine.utterance(tenant="acme", user="u1", feature="ask"):
        engine.charge(Call(model="any", amount="0.04"), cost="0.04")
        assert refusal(engine, "0.02").budget == "ask-answer"
    with engine.utterance(tenant="acme", user="u1", feature="chat"):
        paid(engine, "0.06")


def test_pact_counts_questions_when_they_are_asked_and_leaves_them_to_the_operator() -> None:
    asked = {b.name: b for b in Policy.preset("pact").budgets if b.features == ("ask",)}
    questions, person = asked["ask-questions"], asked["ask-per-person"]
    assert (questions.limit, questions.window, questions.managed) == (500, "rolling:24h", True)
    assert (person.limit, person.window, person.managed) == (30, "rolling:60s", False)
    assert (questions.scope, questions.count, person.scope, person.count) == ("tenant", "entry", "user", "entry")


def tokens(engine: BudgetEngine, amount: int) -> None:
    held = engine.reserve(Call(model="any", tenant="acme", user="u1", input_tokens=amount, max_output_tokens=0))
    engine.settle(held, usage=Usage(input_tokens=amount - 10, output_tokens=10))


def test_daily_tokens_counts_input_and_output_and_says_the_seconds_to_midnight(
    opened: Opened, clock: FrozenTime
) -> None:
    engine = opened("daily-tokens")
    tokens(engine, 99_990)
    asked = Call(model="any", tenant="acme", user="u1", input_tokens=11, max_output_tokens=0)
    refused = engine.check(asked).refusal
    assert refused is not None
    assert (refused.budget, refused.code, refused.retry_after) == ("user-tokens", "tokens", 12 * 3600)
    assert (refused.available, refused.requested) == (10, 11)
    tokens(engine, 10)
    clock.pass_by(hours=12)
    assert engine.check(asked)


def test_daily_tokens_names_the_rate_where_both_deny(opened: Opened) -> None:
    engine = opened("daily-tokens")
    for _ in range(20):
        tokens(engine, 5_000)
    refused = engine.check(Call(model="any", tenant="acme", user="u1", input_tokens=1, max_output_tokens=0)).refusal
    assert refused is not None
    assert (refused.budget, refused.failed) == ("user-calls", ("user-calls", "user-tokens"))
    assert refused.retry_after == 12 * 3600


def ask(engine: BudgetEngine, user: str = "u1", tenant: str = "acme") -> None:
    """A question that no model has to answer."""
    with engine.utterance(tenant=tenant, user=user, feature="ask"):
        pass


def refused_question(engine: BudgetEngine, user: str = "u1") -> BudgetExceeded:
    with pytest.raises(BudgetExceeded) as caught:
        ask(engine, user)
    return caught.value


def spent(engine: BudgetEngine, budget: str) -> Any:
    return {line.budget: line.spent for line in engine.status(tenant="acme", user="u1")}[budget]


def test_pact_counts_500_questions_a_day_though_no_model_answers(opened: Opened, clock: FrozenTime) -> None:
    engine = opened("pact")
    for number in range(500):
        ask(engine, user=f"u{number // 25}")
    assert (spent(engine, "ask-questions"), spent(engine, "tenant-calls")) == (500, 0)
    refused = refused_question(engine, "u99")
    assert (refused.budget, refused.stage, refused.retry_after) == ("ask-questions", "start", 24 * 3600)
    with engine.utterance(tenant="acme", user="u99", feature="chat"):
        paid(engine, "0.01", user="u99")
    clock.pass_by(hours=24)
    ask(engine)
    assert spent(engine, "ask-questions") == 1


def test_pact_lets_a_person_ask_30_times_a_minute(opened: Opened, clock: FrozenTime) -> None:
    engine = opened("pact")
    for _ in range(30):
        ask(engine)
    refused = refused_question(engine)
    assert (refused.budget, refused.retry_after) == ("ask-per-person", 60)
    ask(engine, user="u2")
    clock.pass_by(seconds=60)
    ask(engine)


def test_pact_gives_a_tenant_another_number_which_its_own_administrator_cannot_change(opened: Opened) -> None:
    engine = opened("pact")
    with pytest.raises(ConfigurationError, match="only an operator"):
        engine.override("ask-questions", 9_000, tenant="acme", by="their-admin", role="admin")
    assert engine.override("ask-questions", 2, tenant="acme", by="ops")
    assert engine.override("ask-per-person", 1, tenant="acme", by="their-admin", role="admin")
    ask(engine)
    assert refused_question(engine).budget == "ask-per-person"
    ask(engine, user="u2")
    assert refused_question(engine, "u3").budget == "ask-questions"
    for _ in range(3):
        ask(engine, tenant="other")


def test_pact_ignores_a_stored_number_that_is_none_and_shows_it_as_such(opened: Opened) -> None:
    engine = opened("pact")
    engine.override("ask-per-person", 1, tenant="acme")
    ((name, kept),) = [pair for pair in engine.run(stored()).items() if pair[0].startswith("limit")]
    for limit in ('"limit":-5', '"limit":1e300', '"limit":"many"', "no json"):
        engine.run(stored((name, kept.replace('"limit":1', limit))))
        ask(engine)
        ask(engine)
        (shown,) = engine.overrides()
        assert (shown.budget, shown.limit) == ("ask-per-person", None)
        assert {line.budget: line.limit for line in engine.status(tenant="acme", user="u1")}["ask-per-person"] == 30


def stored(*changes: tuple[str, str | None]) -> Any:
    """Steps that write texts beside the engine's back, as some other program may."""
    now: SettingsNow = yield Settings(now_ms=None)
    if changes:
        now = yield Settings(changes, tuple(now.texts.get(name) for name, _ in changes), None)
    return now.texts


def test_pact_alerts_once_at_four_fifths_of_the_month(opened: Opened) -> None:
    alerts: list[Any] = []
    engine = opened("pact", on_alert=alerts.append)
    for _ in range(4):
        paid(engine, "4.50")
    assert [(a["budget"], a["threshold"], a["spent"], a["tenant"]) for a in alerts] == [
        ("tenant-month", 0.8, 18 * 10**9, "acme")
    ]


def test_pact_alerts_once_of_20_refused_utterances_in_a_minute_and_stops_nobody(
    opened: Opened, clock: FrozenTime
) -> None:
    alerts: list[Any] = []
    mine, theirs = (opened("pact", on_alert=alerts.append) for _ in range(2))
    for number in range(20):
        mine.release(mine.reserve(Call(model="any", tenant="acme", user="u1", amount=0, utterance=f"u-{number}")))
    for engine in (mine, theirs) if mine.shared else (mine,):
        for number in range(19):
            assert refusal(engine, "0", utterance=f"more-{number}").code == "utterances"
        assert len(alerts) == (engine is theirs)
        for number in range(19, 45):
            refusal(engine, "0", utterance=f"more-{number}")
    assert [(a["budget"], a["times"], a["code"], a["tenant"], a["user"]) for a in alerts] == [
        ("user-utterances", 20, "utterances", "acme", "u1")
    ]
    assert mine.kills() == []
    clock.pass_by(minutes=2)
    mine.reserve(Call(model="any", tenant="acme", user="u1", amount=0))


def test_pact_stops_a_killed_tenant_in_its_answers_and_its_questions(opened: Opened) -> None:
    engine = opened("pact")
    engine.kill("acme", reason="a loop", by="ops")
    assert refusal(engine, "0").code == refused_question(engine).code == "killed"
    engine.revive("acme", by="ops")
    ask(engine)
    paid(engine, "0.01")


@pytest.mark.parametrize(("cutoff", "passes"), [("hard", ()), ("soft", MODELS[:1]), ("warn", MODELS)])
def test_zeno_with_each_cutoff(engine_url: str, clock: FrozenTime, cutoff: str, passes: tuple[str, ...]) -> None:
    values = {**Policy.preset("zeno").model_dump(), "cutoff": cutoff, "store_timeout": "10s"}
    with BudgetEngine.open(engine_url, values, clock=clock) as engine:
        paid(engine, "2")
        asked = {model: engine.check(Call(model=model, tenant="acme", user="u1", amount="0.10")) for model in MODELS}
        assert tuple(model for model in MODELS if asked[model].allowed) == passes


def test_pact_refuses_an_answer_whose_steps_have_cost_more_than_its_ceiling(opened: Opened) -> None:
    engine = opened("pact")
    for number in range(5):
        with engine.utterance(tenant="acme", user=f"u{number}", feature="ask"):
            for step, cost in (("answer", "0.03"), ("check", "0.015")):
                used = Usage(input_tokens=100, output_tokens=100)
                engine.settle(engine.reserve(Call(model="any", step=step, amount=cost)), usage=used, cost=cost)
    with (
        pytest.raises(BudgetExceeded) as caught,
        engine.utterance(tenant="acme", user="u1", feature="ask", plan=("answer", "check", "check")),
    ):
        pytest.fail("the answer began")
    refused = caught.value
    assert (refused.code, refused.stage, refused.requested) == ("answer_estimate", "start", Decimal("0.06"))
    with engine.utterance(tenant="acme", user="u1", feature="ask", plan=("answer", "check")) as fits:
        assert fits.estimate == Decimal("0.045")
