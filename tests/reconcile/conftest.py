"""What the tests of reconcile share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from books_server import BooksServer
from ledgers import Kept


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.engine.close()


@pytest.fixture
def server() -> Iterator[BooksServer]:
    with BooksServer() as started:
        yield started
