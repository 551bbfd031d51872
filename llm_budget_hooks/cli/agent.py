"""A LangGraph agent whose one utterance fans out into six model calls: router, classifier, three tools, answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, TypedDict

from llm_budget_hooks.cli.race import TENANT, USER
from llm_budget_hooks.cli.target import Target, needed
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import BudgetExceeded
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.pricing import Price
from llm_budget_hooks.testing import Reply, ToolCall

QUESTION = "Why was I billed twice this month, and what do I do about it?"
PER_MINUTE = 20
_PROMPTS = {
    "router": "Name the department that answers: billing, technical or sales.",
    "classifier": "Call search_invoices, search_payments and search_policies, all three, once each.",
    "tool": "Say in two sentences what these records show.",
    "answer": "Answer the customer from the findings.",
}
_MAX_TOKENS = {"router": 20, "classifier": 120, "tool": 100, "answer": 760}
_RECORDS = {
    "search_invoices": "Invoices 1041 and 1042, both of 3 November, $49.00 each.",
    "search_payments": "Two card payments of $49.00 on 3 November, four seconds apart.",
    "search_policies": "Duplicate charges are refunded within five working days on request.",
}
_SHARE = 60


class State(TypedDict, total=False):
    """What the graph hands from node to node."""

    messages: list[Any]
    findings: list[str]
    answer: str


@dataclass
class Answer:
    """What came of one utterance.

    Attributes:
        feature: the part of the product that asked.
        ceiling: of the answer, in dollars.
        served: whether there was an answer.
        utterances: how many were counted for it.
        calls: how many model calls were let through.
        spent: what they cost by the budgets, in dollars.
        billed: what they cost by the provider's records; None where nobody keeps them.
        requests: how many reached the provider, by its own count.
        refusal: what stopped it.
    """

    feature: str
    ceiling: Decimal
    served: bool = True
    utterances: int = 0
    calls: int = 0
    spent: Decimal = Decimal(0)
    billed: Decimal | None = None
    requests: int | None = None
    refusal: BudgetExceeded | None = field(default=None, repr=False)


def ceilings_for(price: Price) -> dict[str, Decimal]:
    """A ceiling that an answer fits under and one that its last call does not, by feature, in dollars."""
    last = to_decimal(price.bound_nusd(150, _MAX_TOKENS["answer"]))
    rounded = Context(prec=2, rounding=ROUND_HALF_UP).create_decimal
    return {"chat": rounded(last * 4), "preview": rounded(last * Decimal("1.2"))}


def policy_for(price: Price) -> dict[str, Any]:
    """The policy that the agent runs under."""
    ceilings = ceilings_for(price)
    users = [
        {"name": "user-day", "limit": ceilings["chat"] * 10, "window": "day"},
        {"name": "calls-day", "meter": "calls", "limit": 1000, "window": "day"},
        {"name": "per-minute", "meter": "utterances", "limit": PER_MINUTE, "window": "rolling:60s"},
    ]
    answers = [{"name": f"{name}-answer", "limit": limit, "features": [name]} for name, limit in ceilings.items()]
    return {"budgets": [{"scope": "user", **b} for b in users] + [{"scope": "answer", **b} for b in answers]}


def script(request: dict[str, Any]) -> Reply | None:
    """What the fake model says: it asks for the tools where there are some, and talks elsewhere."""
    if request.get("tools"):
        return Reply(tool_calls=tuple(ToolCall(name, {"customer": USER}) for name in _RECORDS))
    return None


def ask(target: Target, engine: BudgetEngine, price: Price, feature: str, done: Callable[[], None]) -> Answer:
    """Put the question to the agent, as one utterance of one user.

    Args:
        target: where the model calls go.
        engine: with the budgets of `policy_for`.
        price: of the model.
        feature: ``chat`` or ``preview``.
        done: called after each model call.
    """
    from llm_budget_hooks.langchain import BudgetCallbackHandler

    target.play(script, _SHARE)
    before = _balances(engine)
    result = Answer(feature, ceilings_for(price)[feature])
    config = {
        "callbacks": [BudgetCallbackHandler(engine)],
        "metadata": {"tenant": TENANT, "user": USER, "feature": feature},
    }
    try:
        _graph(target, done).invoke({"messages": [("user", QUESTION)]}, config=config)
    except BudgetExceeded as refusal:
        result.served, result.refusal = False, refusal
    engine.flush()
    _count(result, target, price, before, _balances(engine))
    return result


def _balances(engine: BudgetEngine) -> dict[str, Decimal]:
    return {line.budget: Decimal(line.spent or 0) for line in engine.status(tenant=TENANT, user=USER)}


def _count(result: Answer, target: Target, price: Price, before: dict[str, Decimal], after: dict[str, Decimal]) -> None:
    result.spent = after["user-day"] - before["user-day"]
    result.calls = int(after["calls-day"] - before["calls-day"])
    result.utterances = int(after["per-minute"] - before["per-minute"])
    result.requests = target.requests()
    billed = target.billed_nusd(price)
    result.billed = None if billed is None else to_decimal(billed)


def _graph(target: Target, done: Callable[[], None]) -> Any:
    """Router, classifier, tools side by side, answer."""
    graph = needed("langgraph.graph", "langgraph")
    says = _speaker(target, done)
    tools = _tools(says)
    chooser = target.chat_model(_MAX_TOKENS["classifier"]).bind_tools(tools)

    def router(state: State) -> State:
        return {"messages": [*state["messages"], ("assistant", says("router", QUESTION))]}

    def classifier(state: State) -> State:
        message = chooser.invoke([("system", _PROMPTS["classifier"]), ("user", QUESTION)])
        done()
        return {"messages": [*state["messages"], message]}

    def answer(state: State) -> State:
        found = [str(message.content) for message in state["messages"]]
        return {"answer": says("answer", "\n".join([QUESTION, *found]))}

    built = graph.StateGraph(State)
    built.add_node("router", router)
    built.add_node("classifier", classifier)
    built.add_node("tools", needed("langgraph.prebuilt", "langgraph").ToolNode(tools))
    built.add_node("answer", answer)
    for before, after in (("router", "classifier"), ("classifier", "tools"), ("tools", "answer")):
        built.add_edge(before, after)
    return built.set_entry_point("router").compile()


def _speaker(target: Target, done: Callable[[], None]) -> Callable[[str, str], str]:
    models = {step: target.chat_model(bound) for step, bound in _MAX_TOKENS.items()}

    def says(step: str, text: str) -> str:
        message = models[step].invoke([("system", _PROMPTS[step]), ("user", text)])
        done()
        return str(message.content)

    return says


def _tools(says: Callable[[str, str], str]) -> list[Any]:
    """Three tools, each of which has a model read what it found."""
    from langchain_core.tools import StructuredTool

    def made(name: str, record: str) -> Any:
        def search(customer: str) -> str:
            return says("tool", f"Customer {customer}: {record}")

        return StructuredTool.from_function(search, name=name, description=f"{name.replace('_', ' ')} of a customer")

    return [made(name, record) for name, record in _RECORDS.items()]
