"""Who asks: tasks, threads, and four processes of which two are killed in mid-call."""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from scenes import FATES, LATENCY_S, PROCESSES, Books, Scene, Steps
from ways import Careless, Engine, Refused, Total, Way

from llm_budget_hooks import BudgetEngine, BudgetExceeded, StoreUnavailable

_PAUSE_S = 0.03
_SCENE_S = 90.0
_VICTIMS = (1, 3)
_CALLS_OF_A_VICTIM = 4


class Worker:
    """The callers of one process.

    Args:
        scene: what is played.
        way: how calls are let in.
        books: this process's slot.
        slot: its number; two of four processes are killed.
        callers: how many.
    """

    def __init__(self, scene: Scene, way: Way, books: Books, slot: int, callers: int) -> None:
        self.scene = scene
        self.way = way
        self.books = books
        self.callers = callers
        self._first = slot * callers
        self._victim = scene.crowd == "processes" and slot in _VICTIMS
        self._made = 0
        self._until = time.monotonic() + _SCENE_S

    def fate(self, chance: random.Random) -> str:
        if not self.scene.faults:
            return "well"
        self._made += 1
        if self._victim and self._made >= _CALLS_OF_A_VICTIM:
            return "killed"
        return chance.choices([*FATES], [*FATES.values()])[0]

    def chance(self, number: int) -> random.Random:
        return random.Random(self._first + number)

    def goes_on(self, made: int) -> bool:
        if time.monotonic() > self._until:
            raise TimeoutError(f"a scene went on for more than {_SCENE_S:g} s")
        return self.scene.calls_each is None or made < self.scene.calls_each

    def in_threads(self) -> None:
        with ThreadPoolExecutor(self.callers) as pool:
            list(pool.map(self._thread, range(self.callers)))

    def _thread(self, number: int) -> None:
        chance, made = self.chance(number), 0
        while self.goes_on(made) and self._once(number, chance):
            made += 1

    def _once(self, number: int, chance: random.Random) -> bool:
        fate = self.fate(chance)
        self.books.add(offered=1)
        while True:
            try:
                with suppress(TimeoutError):
                    self._drive(self.way.call(number, fate.replace("cancelled", "times out"), chance))
            except (BudgetExceeded, Refused) as refusal:
                if _is_final(refusal):
                    return False
                time.sleep(chance.uniform(0.5, 1.5) * _PAUSE_S)
            else:
                return True

    def _drive(self, steps: Steps) -> Any:
        with suppress(StopIteration):
            ask = next(steps)
            while True:
                try:
                    answer = self._do(ask)
                except BaseException as error:  # noqa: BLE001 - the call decides what a failure means
                    ask = steps.throw(error)
                else:
                    ask = steps.send(answer)

    def _do(self, ask: tuple[Any, ...]) -> Any:
        if ask[0] == "sleep":
            return time.sleep(ask[1])
        named = ask[2] if len(ask) > 2 else {}
        return getattr(self.way.engine, ask[0])(ask[1], **named)  # type: ignore[attr-defined]  # only Engine asks

    async def in_tasks(self) -> None:
        await asyncio.gather(*(self._task(number) for number in range(self.callers)))

    async def _task(self, number: int) -> None:
        chance, made = self.chance(number), 0
        while self.goes_on(made) and await self._aonce(number, chance):
            made += 1

    async def _aonce(self, number: int, chance: random.Random) -> bool:
        fate = self.fate(chance)
        self.books.add(offered=1)
        while True:
            try:
                with suppress(TimeoutError):
                    await self._cut(self._adrive(self.way.call(number, fate, chance)), fate, chance)
            except (BudgetExceeded, Refused) as refusal:
                if _is_final(refusal):
                    return False
                await asyncio.sleep(chance.uniform(0.5, 1.5) * _PAUSE_S)
            else:
                return True

    async def _cut(self, call: Any, fate: str, chance: random.Random) -> None:
        """Run a call, and cancel it at any moment of its life if that is its fate."""
        task = asyncio.ensure_future(call)
        if fate == "cancelled":
            await asyncio.sleep(chance.uniform(0, 1.5 * LATENCY_S))
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _adrive(self, steps: Steps) -> Any:
        with suppress(StopIteration):
            ask = next(steps)
            while True:
                try:
                    answer = await self._ado(ask)
                except BaseException as error:  # noqa: BLE001 - the call decides what a failure means
                    ask = steps.throw(error)
                else:
                    ask = steps.send(answer)

    async def _ado(self, ask: tuple[Any, ...]) -> Any:
        if ask[0] == "sleep":
            return await asyncio.sleep(ask[1])
        named = ask[2] if len(ask) > 2 else {}
        return await getattr(self.way.engine, "a" + ask[0])(ask[1], **named)  # type: ignore[attr-defined]  # a method by its name, or a way by its kind


def _is_final(refusal: BudgetExceeded | Refused) -> bool:
    """Whether there is no sense in asking again."""
    if isinstance(refusal, StoreUnavailable) and not refusal.busy:
        raise refusal
    return isinstance(refusal, Refused) or not refusal.busy


@dataclass
class Played:
    """A scene that has ended.

    Attributes:
        scene: which.
        truth: what the provider counted, see `Books`.
        spent, reserved: what the engine says of the account that binds, None for the careless ways.
        killed: how many processes were.
        seconds: how long it took.
    """

    scene: Scene
    truth: dict[str, int]
    spent: int | None
    reserved: int | None
    killed: int
    seconds: float


def play(scene: Scene, path: Path, namespace: str) -> Played:
    """Play a scene; the books are a file that does not exist yet."""
    started = time.monotonic()
    Books.make(path)
    killed = 0
    engine = BudgetEngine.open(scene.url, scene.policy(namespace)) if scene.way == "engine" else None
    if scene.crowd == "processes":
        killed = _in_processes(scene, path, namespace)
    else:
        _work(scene, path, 0, scene.callers, scene.crowd, engine)
    spent, reserved = _balance(scene, engine) if engine else (None, None)
    return Played(scene, Books.totals(path), spent, reserved, killed, time.monotonic() - started)


def _work(scene: Scene, path: Path, slot: int, callers: int, crowd: str, engine: BudgetEngine | None) -> None:
    books = Books(path, slot)
    total = Total(scene.url, scene.total) if engine is None else None
    way: Way = Careless(scene, books, total) if total else Engine(scene, books, engine)  # type: ignore[arg-type]  # a method by its name, or a way by its kind
    worker = Worker(scene, way, books, slot, callers)
    if crowd == "tasks":
        asyncio.run(_tasks(worker, engine))
    else:
        worker.in_threads()
    if engine is not None:
        engine.close()
    if total is not None:
        total.close()


async def _tasks(worker: Worker, engine: BudgetEngine | None) -> None:
    await worker.in_tasks()
    if engine is not None:
        await engine.aclose()


def _in_processes(scene: Scene, path: Path, namespace: str) -> int:
    """Four processes, two with tasks and two with threads; one of each is killed. How many were killed."""
    context = get_context("spawn")
    together = context.Barrier(PROCESSES)
    processes = [
        context.Process(target=_process, args=(scene, path, namespace, slot, together)) for slot in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_SCENE_S + 30)
        if process.is_alive():
            process.kill()
            process.join()
            raise TimeoutError(f"a process of the scene {scene.way} {scene.store} did not end")
    codes = [process.exitcode or 0 for process in processes]
    if any(code > 0 for code in codes):
        raise RuntimeError(f"a process of the scene {scene.way} on {scene.store} failed")
    return sum(code < 0 for code in codes)


def _process(scene: Scene, path: Path, namespace: str, slot: int, together: Barrier) -> None:
    engine = BudgetEngine.open(scene.url, scene.policy(namespace)) if scene.way == "engine" else None
    if engine is not None:
        engine.check(scene.call(0))
    together.wait(60)
    _work(scene, path, slot, scene.callers // PROCESSES, "tasks" if slot < 2 else "threads", engine)


def _balance(scene: Scene, engine: BudgetEngine) -> tuple[int, int]:
    """What the engine says was spent once all abandoned holds have expired, and what is still reserved."""
    until = time.monotonic() + scene.timeout_s + 10
    call = scene.call(0)
    while True:
        found = next(s for s in engine.status(call.tenant, call.user) if s.budget == scene.binding)
        if not found.reserved or time.monotonic() > until:
            engine.close()
            unit = 10**9 if scene.meter == "usd" else 1
            return int((found.spent or 0) * unit), int((found.reserved or 0) * unit)
        time.sleep(0.05)
