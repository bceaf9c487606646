"""Entrypoints and tasks beside LangGraph's: gathered, on disk, many at once, resumed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flowpregel.func
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from tests.benchmarks.harness import OURS, Row, Side

HAS_LANGGRAPH = importlib.util.find_spec("langgraph") is not None
_threads = itertools.count()
_folder = tempfile.TemporaryDirectory(prefix="flowpregel-bench-")


def double(n: int) -> int:
    """Do next to nothing."""
    return 2 * n


def gathered(func: Any, tasks: int, *, async_body: bool = False, **options: Any) -> Side:
    """Return the side that runs *tasks* trivial tasks at once; the time is that of one.

    Args:
        func: The module with ``entrypoint`` and ``task``.
        tasks: How many.
        async_body: Whether on an event loop.
        options: For the entrypoint, and ``run`` for ``invoke``.
    """
    asked = options.pop("run", {})

    async def double_later(n: int) -> int:
        return 2 * n

    called = func.task(double_later if async_body else double)

    @func.entrypoint(**options)
    def flow(n: int) -> int:
        return sum(future.result() for future in [called(i) for i in range(n)])

    @func.entrypoint(**options)
    async def aflow(n: int) -> int:
        return sum(await asyncio.gather(*[called(i) for i in range(n)]))

    def once(n: int) -> float:
        config: Any = {"configurable": {"thread_id": str(next(_threads))}}
        started = time.perf_counter()
        if async_body:
            asyncio.run(aflow.ainvoke(n, config, **asked))
        else:
            flow.invoke(n, config, **asked)
        return (time.perf_counter() - started) / n

    once(min(tasks, 200))  # workers start, files are made
    return lambda: once(tasks)


def resumed(func: Any, saver: Callable[[], Any], tasks: int, **options: Any) -> Side:
    """Return the side that resumes a run with *tasks* finished tasks; the time is that of one."""

    def once() -> float:
        called, crashed = func.task(double), []

        @func.entrypoint(checkpointer=saver(), **options)
        def flow(n: int) -> int:
            total = sum(future.result() for future in [called(i) for i in range(n)])
            if not crashed:
                crashed.append(1)
                raise OSError("crash")
            return total

        config: Any = {"configurable": {"thread_id": str(next(_threads))}}
        with contextlib.suppress(OSError):
            flow.invoke(tasks, config)
        started = time.perf_counter()
        flow.invoke(None, config)
        return (time.perf_counter() - started) / tasks

    return once


def _disk_row(name: str, executor: str, durability: str, goal: float) -> Row:
    folder = Path(tempfile.mkdtemp(dir=_folder.name))
    ours = flowpregel.func
    own = LMDBSaver(folder / "store")
    sides = {
        OURS: gathered(
            ours, 200, checkpointer=own, executor=executor, run={"durability": durability}
        )
    }
    if HAS_LANGGRAPH:
        import sqlite3

        import langgraph.func
        from langgraph.checkpoint.sqlite import SqliteSaver

        theirs = SqliteSaver(sqlite3.connect(folder / "sqlite", check_same_thread=False))
        sides["langgraph"] = gathered(langgraph.func, 200, checkpointer=theirs)
    return Row(
        name=name,
        what=f"200 trivial tasks gathered, on disk, {executor}, {durability}",
        unit="a task",
        sides=sides,
        against="langgraph",
        goal=goal,
    )


def _row(name: str, what: str, goal: float, ours: Side, theirs: Any = None) -> Row:
    sides = {OURS: ours}
    if HAS_LANGGRAPH and theirs is not None:
        import langgraph.func

        sides["langgraph"] = theirs(langgraph.func)
    return Row(name=name, what=what, unit="a task", sides=sides, against="langgraph", goal=goal)


def _scale_row(executor: str) -> Row:
    ours = flowpregel.func
    many = gathered(ours, 4_000, executor=executor)
    few = gathered(ours, 500, executor=executor)
    return Row(
        name="W10",
        what=f"one of 4,000 tasks submitted at once, {executor}, beside one of 500",
        unit="a task",
        sides={OURS: many, "one of 500": few},
        against="one of 500",
        goal=1.2,
    )


def rows() -> list[Row]:
    """Return the goals about functional workflows."""
    ours = flowpregel.func
    # What was imported is not to be looked through by each collection, theirs or ours.
    gc.collect()
    gc.freeze()
    own = LMDBSaver(Path(_folder.name) / "resumed")
    memory: dict[str, Any] = {}

    def theirs_resumed(func: Any) -> Side:
        from langgraph.checkpoint.memory import InMemorySaver as TheirSaver

        return resumed(func, TheirSaver, 1_600)

    def kept() -> Any:
        return own

    memory["small"] = resumed(ours, InMemorySaver, 1_600, executor="threads")
    memory["large"] = resumed(ours, kept, 10_000, executor="threads")
    return [
        _row("W3a", "200 trivial tasks gathered, processes beside threads", 0.25,
             gathered(ours, 200, executor="processes"), lambda f: gathered(f, 200)),
        _row("W3a", "200 trivial tasks gathered, threads", 0.25,
             gathered(ours, 200, executor="threads"), lambda f: gathered(f, 200)),
        _row("W3a", "200 trivial async tasks gathered on an event loop", 0.5,
             gathered(ours, 200, async_body=True),
             lambda f: gathered(f, 200, async_body=True)),
        _disk_row("W3b", "processes", "async", 0.15),
        _disk_row("W3b", "threads", "async", 0.15),
        _disk_row("W3b", "processes", "sync", 0.35),
        _scale_row("processes"),
        _scale_row("threads"),
        _scale_row("inline"),
        _row("W11", "resume with 1,600 finished tasks, in memory", 0.15,
             memory["small"], theirs_resumed),
        Row(name="W11", what="resume with 10,000 finished tasks, on disk, beside 1,600 in memory",
            unit="a task", sides={OURS: memory["large"], "1,600": memory["small"]},
            against="1,600", goal=1.5),
    ]  # fmt: skip
