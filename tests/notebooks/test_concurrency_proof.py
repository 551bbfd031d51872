"""What the notebook on concurrency shows, in figures."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "03_concurrency_proof.ipynb"


@pytest.fixture(scope="module")
def shown() -> str:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text") or output.data["image/svg+xml"] for output in outputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:(zmq|jupyter_client|traitlets|nbclient).*")  # Jupyter's own
def test_the_common_ways_pass_the_limit_and_the_engine_does_not(shown: str) -> None:
    let_through = {way.strip(): int(count) for way, count in re.findall(r"^(.{18}) +(\d+) of 200", shown, re.M)}
    assert set(let_through) == {"check, then charge", "count after", "cached total"}
    assert all(count >= 50 for count in let_through.values())
    assert "12 calls, $0.0048 of $0.005 spent, $0 held" in shown
    assert re.findall(r">([^<]*above the limit)<", shown) == [
        *(f"${count * 0.0004:.4f} spent, {count * 0.08 - 1:.0%} above the limit" for count in let_through.values()),
        "$0.0048 spent, nothing above the limit",
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:(zmq|jupyter_client|traitlets|nbclient).*")  # Jupyter's own
def test_the_picture_names_all_that_is_compared(shown: str) -> None:
    assert shown.count("200 offered") == 4
    assert shown.count("let through</text>") == 4
    assert "limit $0.0050, 10 calls" in shown
