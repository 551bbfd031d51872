"""The admin API against its own OpenAPI description, with made-up requests, right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import schemathesis
from fastapi import Depends, FastAPI
from fastapi.security import APIKeyHeader
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, Usage
from llm_budget_hooks.fastapi import Administrator, admin_router

BUDGETS = [
    {"name": "all", "scope": "global", "limit": "$4", "window": "day"},
    {"name": "user-day", "scope": "user", "limit": "$2", "window": "day"},
]
ROLES = {"operator": Administrator("olga", None, "operator"), "admin": Administrator("ann", "acme", "admin")}
KEY = APIKeyHeader(name="x-key")
ROUTES = [
    *((path, "get") for path in ("", "/refusals", "/runs", "/answers", "/events")),
    ("", "put"),
    ("/kill", "post"),
    ("/revive", "post"),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BudgetEngine]:
    folder: Path = tmp_path_factory.mktemp("api")
    policy: dict[str, Any] = {"budgets": BUDGETS, "prices": {"made-up": {"input": "1", "output": "10"}}}
    with BudgetEngine.open(f"sqlite:///{folder / 'b.db'}", policy, ledger=f"sqlite:///{folder / 'l.db'}") as made:
        call = Call(model="made-up", tenant="acme", user="u1", amount="0.1", feature="chat")
        made.settle(made.reserve(call), usage=Usage(input_tokens=1000, output_tokens=100))
        with pytest.raises(BudgetExceeded):
            made.reserve(Call(model="made-up", tenant="acme", user="u1", amount="5"))
        made.flush()
        yield made


def app_of(engine: BudgetEngine, authorize: Callable[..., Any]) -> FastAPI:
    app = FastAPI()
    app.include_router(admin_router(engine, authorize=authorize))
    return app


@pytest.mark.parametrize(
    ("role", "mode"),
    [("operator", GenerationMode.POSITIVE), ("operator", GenerationMode.NEGATIVE), ("admin", GenerationMode.POSITIVE)],
)
@pytest.mark.parametrize("route", ROUTES, ids="-".join)
def test_nothing_is_found_against_the_description(
    engine: BudgetEngine, route: tuple[str, str], role: str, mode: GenerationMode
) -> None:
    app = app_of(engine, lambda: ROLES[role])
    operation = schemathesis.openapi.from_asgi("/openapi.json", app)[f"/ai-budget{route[0]}"][route[1]]

    @settings(max_examples=6, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def found(case: Any) -> None:
        case.call_and_validate()

    found()


def test_every_route_is_described_with_all_that_it_answers(engine: BudgetEngine) -> None:
    def authorize(_: Annotated[str, Depends(KEY)]) -> Administrator:
        return ROLES["operator"]

    paths = app_of(engine, authorize).openapi()["paths"]
    routes = {(path.removeprefix("/ai-budget"), method) for path, found in paths.items() for method in found}
    assert routes == set(ROUTES)
    for (path, method), found in ((key, paths[f"/ai-budget{key[0]}"][key[1]]) for key in routes):
        assert {"200", "401", "403", "422", "503"} <= set(found["responses"]), (path, method)
        assert found["summary"]
        assert len(found["description"]) > 20
        assert found["security"] == [{"APIKeyHeader": []}]
        problems = {status: answer["content"] for status, answer in found["responses"].items() if status != "200"}
        assert all(set(content) == {"application/problem+json"} for content in problems.values())
