"""What a real kernel shows: balances as tables, and cells that may cost no more than they say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from llm_budget_hooks.testing import FakeProvider

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:(zmq|jupyter_client|traitlets|nbclient).*")

READ = """
from llm_budget_hooks import BudgetEngine, Call
engine = BudgetEngine.open("memory://", {"budgets": [
    {"name": "all", "scope": "global", "limit": "$50", "window": "day"},
    {"name": "<b>", "scope": "user", "limit": "$2", "window": "day"}]})
with engine.utterance(tenant="acme", user="ada", feature="chat") as answer:
    engine.charge(Call(model="any", amount="1.5"), cost="1.5")
held = engine.reserve(Call(model="any", tenant="acme", user="ada", amount="0.25"))
"""
ASK = """
import os
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
ask = dict(model="openai/gpt-4o-mini", api_base=URL, api_key="any", max_tokens=100, num_retries=0,
           messages=[{"role": "user", "content": "Hello!"}])
"""


class Kernel:
    """A notebook's kernel: each cell gives its outputs, or the name of what it raised."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client

    def __call__(self, source: str) -> list[Any]:
        cell = nbformat.v4.new_code_cell(source)
        self._client.nb.cells.append(cell)
        self.raised = ""
        try:
            self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
        except CellExecutionError as error:
            self.raised = error.ename
        return list(cell.outputs)

    def html(self, source: str) -> str:
        return "".join(o.data.get("text/html", "") for o in self(source) if "data" in o)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=170, kernel_name="python3")
    with client.setup_kernel():
        made = Kernel(client)
        assert made("%load_ext llm_budget_hooks") == []
        assert made(READ) == []
        yield made


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(output_tokens=100) as running:
        yield running


def test_a_list_of_balances_is_a_table(kernel: Kernel) -> None:
    shown = kernel.html("engine.status(tenant='acme', user='ada')")
    assert shown.count("<tr>") == 3
    assert all(f">{number}</td>" in shown for number in ("$1.5", "$0.25", "$2", "$48.25"))
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown


def test_other_lists_stay_as_they_are(kernel: Kernel) -> None:
    assert kernel.html("[1, 2]") == kernel.html("[]") == ""


def test_one_balance_an_engine_and_an_utterance_are_tables(kernel: Kernel) -> None:
    assert "width:75.0%" in kernel.html("engine.status(tenant='acme', user='ada')[1]")
    assert "BudgetEngine(MemoryStore" in kernel.html("engine")
    answer = kernel.html("answer")
    assert "Utterance ut-" in answer
    assert ">1.5</td>" in answer
    assert "ada" not in answer


def test_what_could_not_be_read_is_unread(kernel: Kernel) -> None:
    shown = kernel.html("BudgetEngine.open('redis://127.0.0.1:1/0', engine.policy).status()")
    assert shown.count(">unread</td>") == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%%budget", "such as %%budget $0.50"),
        ("%%budget 0.5 dollars", "is no amount"),
        ("%%budget $0", "above 0"),
    ],
)
def test_a_budget_that_is_no_amount_is_a_mistake(kernel: Kernel, line: str, said: str) -> None:
    shown = str(kernel(f"{line}\n1"))
    assert "UsageError" in shown
    assert said in shown


def test_a_cell_shows_its_last_value_and_that_it_cost_nothing(kernel: Kernel) -> None:
    outputs = kernel("%%budget $0.50\nx = 40\nx + 2")
    assert [o.data["text/plain"] for o in outputs if o.output_type == "execute_result"] == ["42"]
    assert "This cell cost $0 of $0.5" in str(outputs)
    assert kernel("x")[0].data["text/plain"] == "40"


def test_a_cell_may_spend_its_limit_and_is_stopped_before_the_next_call(kernel: Kernel, provider: FakeProvider) -> None:
    kernel(f"URL = {provider.base_url!r}\n{ASK}")
    outputs = kernel("%%budget $0.0002\nfor number in range(5):\n    litellm.completion(**ask)")
    assert kernel.raised == "BudgetRefused"
    assert provider.count == 3
    bill = 150 * provider.billed_input_tokens + 600 * provider.billed_output_tokens
    assert f"This cell cost ${bill / 10**9:f}".rstrip("0") in str(outputs)
    kernel("litellm.completion(**ask)")
    assert (kernel.raised, provider.count) == ("", 4)


def test_a_cell_that_awaits_is_capped_as_well(kernel: Kernel, provider: FakeProvider) -> None:
    kernel(f"URL = {provider.base_url!r}\n{ASK}")
    source = "import asyncio\nasks = [litellm.acompletion(**ask) for _ in range(9)]\n"
    kernel(f"%%budget $0.0002\n{source}found = await asyncio.gather(*asks, return_exceptions=True)")
    assert kernel.raised == ""
    assert 0 < 150 * provider.billed_input_tokens + 600 * provider.billed_output_tokens <= 200_000
    (refused,) = kernel("sum(isinstance(one, Exception) for one in found)")
    assert int(refused.data["text/plain"]) == 9 - provider.count


def test_a_cell_with_langchain_is_capped(kernel: Kernel, provider: FakeProvider) -> None:
    cell = (
        "from langchain_openai import ChatOpenAI\n"
        f"model = ChatOpenAI(model='gpt-4o-mini', base_url={provider.base_url!r}, api_key='any', max_tokens=100)\n"
        "for number in range(5):\n    model.invoke('Hello!')"
    )
    kernel(f"%%budget $0.0002\n{cell}")
    assert (kernel.raised, provider.count) == ("BudgetRefused", 3)


@pytest.mark.parametrize(
    "work",
    [
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool:\n    list(pool.map(model.invoke, ['Hello!'] * 9))",
        "import threading\nseen = []\ndef ask():\n    try:\n        [model.invoke('Hello!') for _ in range(9)]\n"
        "    except Exception as error:\n        seen.append(error)\n"
        "thread = threading.Thread(target=ask)\nthread.start()\nthread.join()\nraise seen[0]",
        "import asyncio\nwork = lambda: [model.invoke('Hello!') for _ in range(9)]\n"
        "await asyncio.get_running_loop().run_in_executor(None, work)",
    ],
    ids=["pool", "thread", "executor"],
)
def test_threads_of_a_cell_are_capped(kernel: Kernel, provider: FakeProvider, work: str) -> None:
    kernel(
        "from langchain_openai import ChatOpenAI\n"
        f"model = ChatOpenAI(model='gpt-4o-mini', base_url={provider.base_url!r}, api_key='any', max_tokens=100)\n"
    )
    kernel(f"%%budget $0.0002\n{work}")
    capped = provider.count
    assert kernel.raised == "BudgetRefused"
    assert 0 < capped <= 3
    kernel("model.invoke('Hello!')")
    assert (kernel.raised, provider.count) == ("", capped + 1)


def test_an_interrupted_cell_stops_awaiting(kernel: Kernel) -> None:
    kernel(
        "import asyncio, os, signal, threading, time\nended = []\n"
        "threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()"
    )
    kernel(
        "%%budget $0.50\ntry:\n    await asyncio.sleep(60)\n"
        "finally:\n    ended.append(asyncio.current_task().cancelling())"
    )
    assert kernel.raised == "KeyboardInterrupt"
    (found,) = kernel("ended")
    assert found.data["text/plain"] == "[1]"


def test_another_engine_of_the_process_is_another_payer(kernel: Kernel) -> None:
    kernel("from llm_budget_hooks.langchain import install, uninstall\ninstall(engine)")
    outputs = kernel("%%budget $0.50\nprint('never')")
    kernel("uninstall()")
    assert "another payer" in str(outputs)
    assert "never" not in [o.get("text") for o in outputs]


def test_another_payer_is_a_mistake(kernel: Kernel) -> None:
    kernel("from llm_budget_hooks.litellm import BudgetCallback\nlitellm.callbacks = [BudgetCallback(engine)]")
    outputs = kernel("%%budget $0.50\nprint('never')")
    kernel("litellm.callbacks = []")
    assert "another payer" in str(outputs)
    assert "never" not in [o.get("text") for o in outputs]
