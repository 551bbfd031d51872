"""The README's examples run as they stand, and its statements about what is missing are true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, Usage
from llm_budget_hooks.alerts.webhook import signature
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.pricing import PriceBook, own
from llm_budget_hooks.testing import FakeProvider

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
RULES, PRICES = (text for language, text in BLOCKS if language == "toml")
COMMANDS = [text.strip() for language, text in BLOCKS if language == "sh"]
EXAMPLES = [text for language, text in BLOCKS if language == "python"]
ADMIN, LITELLM, BUDGETED, ROUTER, LANGCHAIN, BARE, PRICED, RECEIVER = EXAMPLES
SPOKEN = "Good morning!"


TIGHT = RULES.replace('limit = "$5"', 'limit = "$0.000001"')
RUNNER = """
import gc, os, runpy, sys
gc.disable()  # importing the frameworks is most of the time, and this is a third of it
for folder in sys.argv[1:]:
    os.chdir(folder)
    runpy.run_path("example.py", run_name="__main__")
    print("--", flush=True)
"""


@dataclass
class Ran:
    """What came of an example: what it printed, and the folder with its rules and its balances."""

    said: str
    folder: Path

    def spent(self, tenant: str, user: str | None) -> dict[str, object]:
        url = f"sqlite:///{self.folder / 'llm-budget.db'}"
        with BudgetEngine.open(url, self.folder / "budgets.toml") as engine:
            return {line.budget: line.spent for line in engine.status(tenant=tenant, user=user)}


@dataclass
class Session:
    """Examples that ran one after the other in one process, and the provider that they called."""

    runs: list[Ran]
    provider: FakeProvider

    @property
    def billed(self) -> Decimal:
        """What the provider bills in all, at the list price of gpt-4o-mini."""
        return to_decimal(150 * self.provider.billed_input_tokens + 600 * self.provider.billed_output_tokens)


def run(folder: Path, examples: list[tuple[str, str]]) -> Session:
    """Run examples where a user would: beside their rules, with a key and a provider in the environment."""
    folders = [folder / str(place) for place in range(len(examples))]
    for place, (example, rules) in zip(folders, examples, strict=True):
        place.mkdir()
        (place / "budgets.toml").write_text(rules, encoding="utf-8")
        (place / "example.py").write_text(example, encoding="utf-8")
    with FakeProvider(text=SPOKEN, output_tokens=20) as provider:
        env = {**os.environ, **dict.fromkeys(("OPENAI_API_BASE", "OPENAI_BASE_URL"), provider.base_url)}
        env |= {"OPENAI_API_KEY": "any", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        command = [sys.executable, "-c", RUNNER, *map(str, folders)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    said = [text.strip() for text in done.stdout.split("--\n")]
    return Session([Ran(*pair) for pair in zip(said, folders, strict=False)], provider)


@pytest.fixture(scope="module")
def litellm_session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return run(tmp_path_factory.mktemp("litellm"), [(LITELLM, RULES), (LITELLM, TIGHT)])


@pytest.fixture(scope="module")
def langchain_session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return run(tmp_path_factory.mktemp("langchain"), [(LANGCHAIN, RULES), (LANGCHAIN, TIGHT)])


@pytest.fixture(params=["litellm", "langchain"])
def session(request: pytest.FixtureRequest) -> Session:
    found: Session = request.getfixturevalue(f"{request.param}_session")
    return found


def test_an_example_calls_the_provider_and_books_what_it_cost(session: Session) -> None:
    paid = session.runs[0]
    assert paid.said == SPOKEN
    balances = paid.spent("acme", "u1")
    assert balances["user-utterances-rolling:60s"] == 1
    assert balances["user-day"] == balances["global-usd-day"] == session.billed > 0


def test_an_example_refuses_before_the_provider_is_called(session: Session) -> None:
    refused = session.runs[1]
    assert TIGHT != RULES
    assert refused.said == "This request is too large. Ask more narrowly."
    assert refused.spent("acme", "u1")["user-day"] == 0
    assert session.provider.count == 1


def test_the_example_without_a_patch_is_capped_as_well(tmp_path: Path) -> None:
    session = run(tmp_path, [(BUDGETED, RULES)])
    assert session.runs[0].said == SPOKEN
    assert session.provider.count == 1
    assert session.runs[0].spent("default", None)["global-usd-day"] == session.billed > 0


def test_the_example_of_a_router_is_capped(tmp_path: Path) -> None:
    paid, *refused = run(tmp_path, [(ROUTER, RULES)]).runs
    assert paid.said == SPOKEN
    assert not refused
    assert paid.spent("acme", "u1")["user-utterances-rolling:60s"] == 1
    assert 0 < Decimal(str(paid.spent("acme", "u1")["user-day"])) < Decimal("0.0001")


def test_the_example_without_a_framework_shows_what_was_held_and_spent(tmp_path: Path) -> None:
    first, *lines = run(tmp_path, [(BARE, RULES)]).runs[0].said.splitlines()
    assert first == "0.00048 held, 0.0002328 spent"
    assert lines == [
        "global-usd-day 0.0002328 of 50 usd",
        "user-day 0.0002328 of 5 usd",
        "user-utterances-rolling:60s 1 of 20 utterances",
    ]


def test_the_example_of_prices_books_what_they_say(tmp_path: Path) -> None:
    share, tables = PRICES.split("\n", 1)
    (ran,) = run(tmp_path, [(PRICED, f"{share}\n{RULES}\n{tables}")]).runs
    cost = Decimal(200 * 3 + 1000 * 3 * Decimal("0.1") + 88 * 15) / 10**6
    assert ran.said == f"1200 1000 {cost.normalize()}"
    assert ran.spent("default", "")["user-day"] == cost


def test_every_key_of_a_price_is_in_the_readme_and_has_the_default_that_it_says() -> None:
    table = README.partition("| key of `[prices.MODEL]` |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`\[*([a-z_0-9]+)\]*`", table))
    assert named >= {*own._RATES, *own._EACH, *own._LIMITS, *own._TIERS, "above", "changes", "tokens", "from"}
    written = tomllib.loads(PRICES)
    book = PriceBook(written["prices"], written["aliases"], Decimal(str(written["cached_discount"])))
    price = book.price("prod-chat")
    assert (price.max_input_tokens, price.max_output_tokens) == (None, 64_000)
    costs = {
        "input_audio_tokens": 3, "cache_write_tokens": 3, "cache_write_1h_tokens": 3, "input_image_tokens": 3,
        "cached_input_tokens": Decimal("0.3"),
    }  # fmt: skip
    for name, dollars in costs.items():
        used = Usage(input_tokens=100_000, **{name: 100_000})
        assert to_decimal(price.cost_nusd(used)) * 10 == dollars
    for name in ("reasoning_tokens", "output_audio_tokens", "output_image_tokens"):
        assert to_decimal(price.cost_nusd(Usage(output_tokens=10**6, **{name: 10**6}))) == 15
    assert to_decimal(price.cost_nusd(Usage(input_tokens=10**6, service_tier="flex"))) == 3, "half of $6"
    assert to_decimal(price.cost_nusd(Usage(input_tokens=10**5, service_tier="flex"))) == Decimal("0.15")
    assert to_decimal(price.cost_nusd(Usage(input_tokens=10**6, searches=1))) == Decimal("6.01")


def test_the_example_of_the_admin_api_shows_and_changes_limits(tmp_path: Path) -> None:
    asking = """
import httpx, asyncio
async def main():
    to = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=to, base_url="http://x", headers={"x-key": "key-of-ann"}) as http:
        await http.put("/ai-budget", json={"budget": "user-day", "limit": "7"})
        print([rule["limit"] for rule in (await http.get("/ai-budget")).json()["rules"]])
        print((await http.get("/ai-budget", headers={"x-key": "nobody"})).status_code)
asyncio.run(main())
engine.close()
"""
    assert run(tmp_path, [(ADMIN + asking, RULES)]).runs[0].said == "['7', 20, '0.05']\n401"


def test_every_python_block_is_one_of_those_above() -> None:
    assert EXAMPLES == [ADMIN, LITELLM, BUDGETED, ROUTER, LANGCHAIN, BARE, PRICED, RECEIVER]


def test_the_line_for_the_proxy_names_a_module_and_what_it_gives() -> None:
    (settings,) = (text for language, text in BLOCKS if language == "yaml")
    module, _, name = settings.split("callbacks: ")[1].strip().rpartition(".")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    assert f'"{name}"' in Path(spec.origin).read_text(encoding="utf-8")


def test_the_examples_for_the_frameworks_are_short() -> None:
    for example in (LITELLM, LANGCHAIN):
        assert sum(bool(line.strip()) for line in example.splitlines()) <= 10


def test_the_two_commands_are_one_line_each() -> None:
    install = r"python3 -m venv \.venv && \.venv/bin/pip install -q "
    assert len(COMMANDS) == 2
    assert re.fullmatch(install + r"'\.\[demo\]' && \.venv/bin/llm-budget demo", COMMANDS[0])
    assert re.fullmatch(install + r"-e '\.\[test\]' && \.venv/bin/python -m pytest", COMMANDS[1])


def test_a_receiver_of_alerts_knows_which_are_its_own() -> None:
    names: dict[str, Any] = {}
    exec(RECEIVER, names)  # noqa: S102 - the README's own example
    body = b'{"text":"Budget user-day has reached 80 % of its limit."}'
    header = signature("secret", int(time.time()), body)
    assert names["is_ours"]("secret", header, body)
    assert not names["is_ours"]("other", header, body)
    assert not names["is_ours"]("secret", header, body + b" ")
    assert not names["is_ours"]("secret", signature("secret", int(time.time()) - 301, body), body)
