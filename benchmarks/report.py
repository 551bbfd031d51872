"""Runs all benchmarks, and writes one table of their figures and the pictures that the README shows.

    python benchmarks/report.py [--short] [--only speed fanout] [--out FOLDER]

Each benchmark is a process of its own. The table goes to the terminal and to ``results.md``, the pictures to
``pictures/``, both in the folder of this file unless ``--out`` names another. The exit code is 1 if a figure does not
hold what it must, or a benchmark ended without any. With ``--short`` all take some six minutes, without it some forty.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from figures import Figure, markdown, options, read, terminal
from pictures import pictures
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HERE = Path(__file__).parent
TITLE = "What the budget costs, and what must hold"


@dataclass(frozen=True)
class Benchmark:
    """A script of this folder.

    Attributes:
        name: the script's, without its ending.
        told: what it is about, for who waits for it.
        judges: it hands no figures on: its exit code says whether all is well.
    """

    name: str
    told: str
    judges: bool = False

    def run(self, short: bool, folder: Path) -> list[Figure]:
        """Its figures, and one more if it failed."""
        path = folder / f"{self.name}.json"
        command = [sys.executable, str(HERE / f"{self.name}.py")]
        command += ["--short"] if short else []
        command += [] if self.judges else ["--json", str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if self.judges:
            return [Figure(self.name, self.told, ended.returncode, "as exit code", last(ended.stdout), most=0)]
        if path.exists():
            return read(path)
        return [Figure(self.name, "ended without figures", ended.returncode, "as exit code", last(ended.stderr), -1)]


ALL = (
    Benchmark("speed", "reserve + settle on each store, and growth"),
    Benchmark("throughput", "pairs a second of 50 tasks and four processes"),
    Benchmark("footprint", "bytes of holds, users and tenants"),
    Benchmark("fanout", "trips to a Redis of an agent's 12 calls"),
    Benchmark("rivals", "other packages on the same Redis"),
    Benchmark("import_time", "what importing the package costs"),
    Benchmark("litellm_overhead", "the callback over a bare call of LiteLLM"),
    Benchmark("langchain_overhead", "the handler over a bare call of LangChain"),
    Benchmark("overshoot", "no limit is passed, by tasks, threads and processes that never stop asking", judges=True),
    Benchmark("faults", "nothing is lost or doubled, whatever breaks", judges=True),
)


def last(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def main() -> int:
    """Run, write, show and judge."""
    given = parsed()
    chosen = [each for each in ALL if not given.only or each.name in given.only]
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="report-") as folder, progress() as shown:
        bar = shown.add_task("", total=len(chosen))
        for each in chosen:
            shown.update(bar, description=f"{each.name}: {each.told}")
            found += each.run(given.short, Path(folder))
            shown.advance(bar)
    write(found, given.out)
    return closed(found)


def parsed() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=[each.name for each in ALL], help="these benchmarks alone")
    parser.add_argument("--out", type=Path, default=HERE, help="where the table and the pictures go")
    return parser.parse_args()


def progress() -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=Console(stderr=True))


def write(found: list[Figure], folder: Path) -> None:
    """The table and the pictures."""
    machine = f"{os.cpu_count()} cores of {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    head = f"Written by `python benchmarks/report.py` on {datetime.now(UTC):%Y-%m-%d}; {machine}."
    (folder / "results.md").write_text(f"# {TITLE}\n\n{head}\n\n{markdown(found)}")
    (folder / "pictures").mkdir(exist_ok=True)
    for name, picture in pictures(found).items():
        (folder / "pictures" / f"{name}.svg").write_text(picture)


def closed(found: list[Figure]) -> int:
    """Show all, and say whether something does not hold what it must."""
    console = Console()
    Console(width=None if console.is_terminal else 200).print(terminal(found, TITLE))
    missed = [figure for figure in found if not figure.passed]
    for figure in missed:
        print("beyond its limit:", ", ".join(cell for cell in figure.cells[:5] if cell))
    print(f"{len(found)} figures, {len(missed)} beyond their limit")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
