"""Measures by how much callers who never stop asking pass a limit: with this engine, and in three careless ways.

    python benchmarks/overshoot.py            all stores, tasks, threads and four processes, within 8 minutes
    python benchmarks/overshoot.py --short    fewer of each, within a minute

What was spent is counted by a made-up provider, apart from the engine. Calls of the engine's rows fail, are
cancelled at any moment, time out and are forgotten, and two of four processes are killed in mid-call with SIGKILL;
abandoned holds expire. The careless ways are spared all that. With `auto`, the default, and outputs of which some are
very long, a limit can be passed: the table says by how much, beside the same calls with `clamp` and with bounds.
The exit status is 1 if the engine, with bounds or `clamp`, lets an account pass its limit, with bounds leaves a whole
hold of it unused, or if its books are not the truth.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from crowds import Played, play
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from scenes import Scene

from llm_budget_hooks.testing import RedisServer, available_servers

STORES = ("memory", "sqlite", "redis")
CARELESS = ("check-then-charge", "total cached 60 s", "count-after")
BINDING = {"tasks": "user", "threads": "tenant", "processes": "global"}
ESTIMATES: dict[str, dict[str, Any]] = {
    "bound = actual": {"outputs": (900, 900)},
    "bound > actual": {"outputs": (100, 900)},
    "step > actual": {"outputs": (100, 600), "step": 700},
    "step < actual": {"outputs": (500, 900), "step": 400},
}
TAILS: dict[str, dict[str, Any]] = {
    "auto, heavy tail": {"step": 400},
    "clamp, heavy tail": {"step": 400, "clamp": True},
    "bound, heavy tail": {},
}
COLUMNS = (
    "store", "crowd", "way", "estimate", "offered", "let through", "spent", "limit", "overshoot", "N x one call",
    "limit used", "charged", "killed", "found",
)  # fmt: skip


def main() -> int:
    """Play all scenes and judge them."""
    options = parsed()
    started = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="overshoot-")))
        scenes = list(chosen(options, stack))
        played = [*progress(scenes, folder)]
    found = [faults(one) for one in played]
    Console(width=None if sys.stdout.isatty() else 230).print(table(played, found))
    seconds = time.monotonic() - started
    bad = sum(map(bool, found))
    print(
        f"{len(played)} scenes in {seconds:.0f} s; "
        + (f"{bad} of them broke a promise" if bad else "every promise held")
    )
    return 1 if bad else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer scenes, within a minute")
    parser.add_argument("--store", choices=STORES, help="only this store")
    return parser.parse_args()


def chosen(options: argparse.Namespace, stack: ExitStack) -> Iterator[Scene]:
    """The scenes; Redis servers are started on the way and stopped with the stack."""
    stores = [options.store] if options.store else STORES
    yield from burst()
    for store in stores:
        for name, url in places(store, options.short, stack):
            crowds = ("tasks", "threads", "processes") if store != "memory" else ("tasks", "threads")
            base = Scene("", "", name, url, "", timeout_s=1.0 if options.short else 2.0)
            yield from short(base, crowds) if options.short else full(base, crowds)


def places(store: str, short: bool, stack: ExitStack) -> Iterator[tuple[str, str]]:
    if store != "redis":
        yield store, f"{store}://"
        return
    sources: list[str | None] = [*available_servers()] or [None]
    for source in sources[:1] if short else sources:
        server = stack.enter_context(RedisServer(source))
        yield f"redis {server.version}", server.url


def burst() -> Iterator[Scene]:
    """Fifty calls of 400 tokens at a limit of 1,000, all at once."""
    one = Scene(
        "count-after", "400 tokens", "memory", "memory://", "tasks",
        room=2.5, meter="tokens", inputs=300, outputs=(100, 100), callers=50, calls_each=1, faults=False,
    )  # fmt: skip
    yield from (one, replace(one, way="engine"))


def tails(base: Scene) -> Iterator[Scene]:
    """Outputs of which most are short and some very long, in the default mode and in those that keep the limit."""
    long = replace(base, way="engine", crowd="tasks", outputs=(100, 8_000), room=12, tail=True)
    yield from (replace(long, estimate=name, **more) for name, more in TAILS.items())


def full(base: Scene, crowds: tuple[str, ...]) -> Iterator[Scene]:
    yield from tails(base)
    for crowd in crowds:
        here = replace(base, crowd=crowd, binding=BINDING[crowd])
        yield from (careless(here, way) for way in CARELESS)
        for name, more in ESTIMATES.items():
            yield replace(here, way="engine", estimate=name, **more)


def short(base: Scene, crowds: tuple[str, ...]) -> Iterator[Scene]:
    """One kind of bound per crowd, and the others once per store."""
    if base.store == "memory":
        yield from tails(base)
    tasks = replace(base, crowd="tasks")
    yield from (careless(tasks, way) for way in CARELESS)
    yield replace(tasks, way="engine", estimate="step < actual", **ESTIMATES["step < actual"])
    for crowd, name in zip(crowds, ("bound > actual", "bound = actual", "bound > actual"), strict=False):
        yield replace(base, way="engine", crowd=crowd, estimate=name, binding=BINDING[crowd], **ESTIMATES[name])


def careless(base: Scene, way: str) -> Scene:
    """A careless way: no faults, and the demand of five limits, as it might never end."""
    return replace(base, way=way, estimate="= actual", faults=False, calls_each=round(5 * base.room / base.callers))


def progress(scenes: list[Scene], folder: Path) -> Iterator[Played]:
    columns = TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(scenes))
        for number, scene in enumerate(scenes):
            bar.update(task, description=f"{scene.store}, {scene.crowd}, {scene.way}")
            yield play(placed(scene, folder, number), folder / f"{number}.books", f"n{number}")
            bar.advance(task)


def placed(scene: Scene, folder: Path, number: int) -> Scene:
    """The scene on a store that is empty for it."""
    if scene.url == "sqlite://":
        return replace(scene, url=f"sqlite:///{folder / f'{number}.db'}")
    if scene.url.startswith("redis://"):
        return replace(scene, total=f"total-{number}")
    return scene


def faults(played: Played) -> str:
    """Which promise was broken, empty if none."""
    scene, truth = played.scene, played.truth
    if played.spent is None:
        return ""
    found = []
    known = truth["billed"] + truth["unbilled"]
    least, most = known + truth["less"], known + truth["more"]
    if played.reserved or not least <= played.spent <= most:
        found.append(f"books: {played.spent} spent and {played.reserved} held, {least} to {most} is true")
    if scene.keeps_limit and max(truth["billed"], played.spent) > scene.limit:
        found.append("overshoot")
    unused = scene.limit - played.spent
    if scene.honest_bound and unused >= (1 + truth["late"]) * scene.hold:
        found.append(f"{shown(scene, unused)} left unused")
    if scene.crowd == "processes" and not played.killed:
        found.append("no process was killed")
    return ", ".join(found)


def shown(scene: Scene, amount: int) -> str:
    return f"{amount:,} tokens" if scene.meter == "tokens" else f"${amount / 10**9:,.4f}"


def table(played: list[Played], found: list[str]) -> Table:
    made = Table(title="Limits under endless demand", caption=CAPTION)
    for name in COLUMNS:
        made.add_column(name, justify="right" if name in COLUMNS[4:-1] else "left", no_wrap=name != "found")
    for one, broken, after in zip(played, found, [*played[1:], None], strict=True):
        ends = after is None or (after.scene.store, after.scene.crowd) != (one.scene.store, one.scene.crowd)
        made.add_row(*row(one, broken), style="dim" if one.spent is None else "", end_section=ends)
    return made


CAPTION = (
    "N x one call: what N callers can pass the limit by, who all look before the first has paid. limit used: what the "
    "provider billed. charged: with what the engine also charges for calls whose outcome nobody learned, as they held."
)


def row(played: Played, broken: str) -> list[str]:
    scene, truth = played.scene, played.truth
    over = max(truth["billed"] - scene.limit, 0)
    beside = shown(scene, scene.callers * scene.one) if scene.way == "check-then-charge" else ""
    way = "this engine" if scene.way == "engine" else scene.way
    return [
        scene.store, scene.crowd, way, scene.estimate, f"{truth['offered']:,}", f"{truth['through']:,}",
        shown(scene, truth["billed"]), shown(scene, scene.limit), shown(scene, over), beside,
        f"{truth['billed'] / scene.limit:.1%}", "" if played.spent is None else f"{played.spent / scene.limit:.1%}",
        str(played.killed or ""), broken or ("" if played.spent is None else "ok"),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
