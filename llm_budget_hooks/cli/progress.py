"""A bar, or a text that changes, on stderr while something takes long; nothing where nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

Tell = Callable[[str, int, int | None], None]


@contextmanager
def progress(text: str, *, quiet: bool) -> Iterator[Tell | None]:
    """What to tell how far the work is: a text, what is done, and of how much; None where nobody looks.

    Args:
        text: what is being done at first.
        quiet: a program reads the output.
    """
    out = Console(stderr=True)
    if quiet or not out.is_terminal:
        yield None
        return
    with Progress(console=out, transient=True) as shown:
        task = shown.add_task(text, total=None)
        yield lambda said, done, total: shown.update(task, description=said, completed=done, total=total)
