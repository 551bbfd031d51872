"""What `import llm_budget_hooks` costs above `import pydantic`, in seconds of CPU and as a ratio, in one run."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

PAIRS = 7


def seconds_of(code: str) -> float:
    """What a process of its own takes for some imports, in seconds of CPU."""
    measure = f"import time; t = time.process_time(); {code}; print(time.process_time() - t)"
    run = [sys.executable, "-c", measure]
    return float(subprocess.run(run, check=True, capture_output=True, text=True, timeout=60).stdout)


def main() -> None:
    """Print the medians of interleaved pairs."""
    pairs = [
        (seconds_of("import pydantic, redis"), seconds_of("import pydantic"), seconds_of("import llm_budget_hooks"))
        for _ in range(PAIRS)
    ]
    redis, pydantic, ours = (median(column) for column in zip(*pairs, strict=True))
    print(f"pydantic {pydantic:.3f} s, with redis {redis:.3f} s, llm_budget_hooks {ours:.3f} s")
    print(f"more than pydantic: {ours - pydantic:.3f} s (wanted: under 0.3 s), {ours / pydantic:.2f} times")


if __name__ == "__main__":
    main()
