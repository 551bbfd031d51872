"""Measures what `import llm_budget_hooks` costs above `import pydantic`, in CPU time of processes that take turns.

python benchmarks/import_time.py [--short]
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from figures import Figure, closed, options

MOST_MS = 300.0


def ms_of(code: str) -> float:
    """What a process of its own takes for some imports, in ms of CPU."""
    measure = f"import time; t = time.process_time(); {code}; print(time.process_time() - t)"
    run = [sys.executable, "-c", measure]
    return float(subprocess.run(run, check=True, capture_output=True, text=True, timeout=60).stdout) * 1e3


def main() -> int:
    """Take the medians of turns, and judge."""
    given = options(__doc__).parse_args()
    turns = [(ms_of("import llm_budget_hooks"), ms_of("import pydantic")) for _ in range(3 if given.short else 7)]
    ours, pydantic = (median(column) for column in zip(*turns, strict=True))
    figure = Figure("import", "llm_budget_hooks", ours - pydantic, "ms", f"above pydantic: {pydantic:.0f} ms", MOST_MS)
    return closed([figure], "What importing the package costs", given.json)


if __name__ == "__main__":
    sys.exit(main())
