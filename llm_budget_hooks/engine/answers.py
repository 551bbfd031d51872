"""Holding an answer to its ceiling, as steps without I/O: what it will probably cost, and what it did cost."""

from __future__ import annotations

import logging
from typing import Any, Final

from llm_budget_hooks.engine.planning import Steps
from llm_budget_hooks.engine.readings import Readings
from llm_budget_hooks.engine.refusals import answer_estimate
from llm_budget_hooks.engine.utterance import Utterance
from llm_budget_hooks.errors import BudgetExceeded, StoreUnavailable
from llm_budget_hooks.histories import answer_key
from llm_budget_hooks.keys import digest, tenant_name
from llm_budget_hooks.models import Call, Outcome
from llm_budget_hooks.transitions import Balances, Meter, Once, OnceAnswer, Samples

_log = logging.getLogger("llm_budget_hooks")

PROBE_AFTER: Final = 10
"""How many answers in a row are refused for what they would probably cost, before one runs all the same."""

PROBE_EVERY_MS: Final = 600_000
"""How long it is until the next one may."""

_KEEP_MS: Final = 30 * 86_400_000


class Answers(Readings):
    """What an engine expects of an answer before it begins, and finds at its end."""

    @property
    def counts_entries(self) -> bool:
        """Whether any budget counts utterances when they begin, whoever's they are."""
        return self._planner.counts_entries

    def limits_answers(self, tenant: str | None, feature: str | None) -> bool:
        """Whether any budget is about single answers of a tenant and a feature."""
        return self._planner.limits_answers and bool(self._planner.answer_lines(tenant, feature))

    def answer_balances(self, scope: Utterance) -> Steps[tuple[Any, Any]]:
        """The answer budgets of an utterance, and what is spent and reserved in each."""
        if not self._planner.answer_lines(scope.tenant, scope.feature):
            return (), ()
        command, lines = self._planner.read_answer(scope.tenant, scope.user, scope.feature, scope.id)
        command.now_ms = self._given_ms()
        answer: Balances = yield command
        return lines, answer.accounts

    def planned_nusd(self, scope: Utterance) -> int | None:
        """What an answer is expected to cost, as far as this process knows; None without a plan and a history."""
        now = self.now_ms()
        if scope.plan is not None:
            return self._planner.planned_nusd(scope.tenant, scope.feature, scope.plan, now)
        return self._planner.histories.p90(_answers(scope.tenant, scope.feature), "", now)

    def expect(self, scope: Utterance) -> Steps[None]:
        """Hold what the announced steps of an answer probably cost against its ceiling.

        Raises:
            BudgetExceeded: it is more than the ceiling.
        """
        if not scope.plan or not self._ceilings(scope.tenant, scope.feature):
            return
        yield from self._known(self._planner.step_keys(scope.tenant, scope.feature, scope.plan))
        yield from self._hold_to_ceiling(call_of(scope), self.planned_nusd(scope))

    def _begins(self, call: Call, scope: Utterance | None) -> bool:
        """Whether a call is the first of an answer that announced no steps and has a ceiling."""
        first = call.utterance is None if scope is None else scope.plan is None and not scope.calls
        return first and bool(self._ceilings(call.tenant, call.feature))

    def _expect_first(self, call: Call) -> Steps[None]:
        """Hold what the last answers cost against the ceiling of one whose first call this is.

        Raises:
            BudgetExceeded: it is more than the ceiling, and no other budget says no before.
        """
        expected = yield from self._expected(call)
        if self._above(call, expected) is not None:
            outcome = yield from self._check_balances(call)
            if outcome.refusal is not None:
                yield from self._turned_away(call, outcome.refusal)
                raise outcome.refusal
        yield from self._hold_to_ceiling(call, expected)

    def _check(self, call: Call) -> Steps[Outcome]:
        joined, scope = self._joined(call)
        outcome = yield from self._check_balances(call)
        if outcome.allowed and self._begins(joined, scope):
            refused = self._above(joined, (yield from self._expected(joined)))
            return outcome if refused is None else Outcome(False, refused, outcome.estimate)
        return outcome

    def _expected(self, call: Call) -> Steps[int | None]:
        """What the last answers of a call's feature cost; None of too few."""
        key = _answers(call.tenant, call.feature)
        yield from self._known((key,))
        return self._planner.histories.p90(key, "", self.now_ms())

    def _known(self, keys: tuple[str, ...]) -> Steps[None]:
        """Read what is not known of some histories; without a store the steps' budgets have to do."""
        unread = self._planner.histories.unread(keys)
        if unread:
            try:
                yield from self._learn(unread)
            except StoreUnavailable as error:
                _log.debug("Histories were not read: %s", error)

    def _ceilings(self, tenant: str | None, feature: str | None) -> list[Any]:
        return [line for line in self._planner.answer_lines(tenant, feature) if line.meter == Meter.USD]

    def _above(self, call: Call, expected: int | None) -> BudgetExceeded | None:
        for line in self._ceilings(call.tenant, call.feature) if expected is not None else ():
            if expected is not None and expected > line.limit:
                return answer_estimate(line.budget.name, line.limit, expected)
        return None

    def _hold_to_ceiling(self, call: Call, expected: int | None) -> Steps[None]:
        """Refuse what is expected to be too expensive; after ten in a row, one in ten minutes runs."""
        error = self._above(call, expected)
        key = digest("probe", tenant_name(call.tenant), call.feature or "")
        if error is None:
            if key in self._refusing and expected is not None:
                self._refusing.discard(key)
                yield from self._probe(key, reset=True)
            return
        self._refusing.add(key)
        if (yield from self._probe(key)):
            _log.warning("%d answers in a row were refused for their estimate; one runs.", PROBE_AFTER)
            return
        yield from self._turned_away(call, error)
        raise error

    def _probe(self, key: str, *, reset: bool = False) -> Steps[bool]:
        try:
            answer: OnceAnswer = yield Once(key, PROBE_AFTER, PROBE_EVERY_MS, _KEEP_MS, reset, self._given_ms())
        except StoreUnavailable as error:
            _log.debug("Refused answers were not counted: %s", error)
            return False
        return answer.yes

    def learn_answer(self, scope: Utterance, cost_nusd: int) -> Steps[None]:
        """Add what an answer cost to the history of its feature."""
        key = _answers(scope.tenant, scope.feature)
        try:
            answer = yield Samples((), ((key, cost_nusd),), self._given_ms())
        except StoreUnavailable as error:
            _log.debug("What an answer cost was not noted: %s", error)
            return
        self._planner.histories.add(key, answer.now_ms, cost_nusd)

    def not_served(self, scope: Utterance, error: BudgetExceeded) -> Steps[None]:
        """Leave it in the trail that an answer cost more than its ceiling."""
        yield from self._turned_away(call_of(scope), error)


def _answers(tenant: str | None, feature: str | None) -> str:
    return answer_key(tenant_name(tenant), feature or "")


def call_of(scope: Utterance) -> Call:
    """The call that stands for an utterance where no model is known yet."""
    return Call(model="*", tenant=scope.tenant, user=scope.user, feature=scope.feature, utterance=scope.id, amount=0)
