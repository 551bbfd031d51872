"""The notebooks run from top to bottom, and show what is kept in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"


def shown(notebook: Any) -> list[str]:
    """The texts and pictures of all cells."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.get("text") or output.data["image/svg+xml"] for output in outputs]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:(zmq|jupyter_client|traitlets|nbclient).*")  # Jupyter's own
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_shows_what_is_kept_in_it(path: Path) -> None:
    kept, run = nbformat.read(path, 4), nbformat.read(path, 4)
    NotebookClient(run, timeout=120, kernel_name="python3").execute()
    assert shown(run) == shown(kept)
    assert len(shown(run)) >= 3
