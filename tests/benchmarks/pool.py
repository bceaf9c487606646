"""Worker processes: round trips, fine-grained tasks, CPU work, large arrays, the cold start."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from flowpregel.channels import LastValue
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.pregel import ChannelWriteEntry, NodeBuilder, Pregel
from tests.benchmarks import core
from tests.benchmarks.harness import OURS, Row, Side
from tests.runs.pooling import Run, node_of

CORES = os.cpu_count() or 1
ARRAY = 50_000_000 // 8
MANY = 10_000
HAS_JOBLIB = importlib.util.find_spec("joblib") is not None
HAS_LANGGRAPH = importlib.util.find_spec("langgraph") is not None

_engines: dict[str, Any] = {}


def engine(name: str) -> Any:
    """Return a warm engine with a worker for each core."""
    if name not in _engines:
        if name == OURS:
            _engines[name] = ProcessExecutor(CORES)
        elif name == "loky":
            import loky

            _engines[name] = loky.ProcessPoolExecutor(CORES)
        else:
            _engines[name] = concurrent.futures.ProcessPoolExecutor(CORES)
        list(_engines[name].map(pause, [0.2] * CORES))
    return _engines[name]


def close_engines() -> None:
    """End every engine."""
    for each in _engines.values():
        each.shutdown()
    _engines.clear()


def timed(work: Callable[[], Any], units: int = 1) -> float:
    """Return the seconds that one of *units* took."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) / units


# ------------------------------------------------ what workers do


def pause(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)


def same(value: Any) -> Any:
    """Do nothing."""
    return value


def spin(seconds: float) -> float:
    """Compute for that long."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    return seconds


def total(array: Any) -> float:
    """Read all of an array."""
    return float(array.sum())


def make(size: int) -> Any:
    """Return an array."""
    return np.ones(size)


# ------------------------------------------------ round trips


def one_by_one(name: str, count: int = 1_000) -> Side:
    """Return a side that waits for each call before it makes the next."""

    def side() -> float:
        submit = engine(name).submit
        return timed(lambda: [submit(same, n).result() for n in range(count)], count)

    return side


def job_by_job(count: int = 1_000) -> Side:
    """Return a side that does so as a run does, which reads the links itself."""
    node = node_of(same)

    def side() -> float:
        run = Run(engine(OURS))
        return timed(lambda: [run.outcome(node, n) for n in range(count)], count)

    return side


def cycle() -> Side:
    """Return a side that runs 1,000 supersteps of one node in a worker."""
    entry = ChannelWriteEntry("v", skip_none=True)

    def side() -> float:
        app = Pregel(
            nodes={"n": NodeBuilder().subscribe_only("v").do(core.count_up).write_to(entry)},
            channels={"v": LastValue(int)},
            input_channels="v",
            output_channels="v",
            executor=engine(OURS),
        )
        config = {"recursion_limit": core.STEPS + 5}
        return timed(lambda: app.invoke(0, config), core.STEPS)

    return side


def peer_cycle() -> Side:
    """Return the same on LangGraph, in its OS threads."""
    app = core.peer_cycle()
    config = {"recursion_limit": core.STEPS + 5}
    return lambda: timed(lambda: app.invoke(0, config), core.STEPS)


# ------------------------------------------------ many small tasks


same_task = task(same)
spin_task = task(spin)


def gathered(step: Any, values: Iterable[Any]) -> Side:
    """Return a side that calls a task for each value and gathers the results."""
    given = list(values)

    def side() -> float:
        @entrypoint(executor=engine(OURS))
        def flow(values: list[Any]) -> int:
            return len([each.result() for each in [step(value) for value in values]])

        return timed(lambda: flow.invoke(given))

    return side


def peer_gathered(values: Iterable[Any]) -> Side:
    """Return the same on LangGraph's threads."""
    from langgraph import func

    peer_task = func.task(same)

    @func.entrypoint()
    def flow(values: list[Any]) -> int:
        return len([each.result() for each in [peer_task(value) for value in values]])

    given = list(values)
    return lambda: timed(lambda: flow.invoke(given))


def mapped(name: str, function: Any, values: Iterable[Any]) -> Side:
    """Return a side that maps plain calls over an engine."""
    given = list(values)
    return lambda: timed(lambda: list(engine(name).map(function, given)))


def ideal(seconds: float) -> Side:
    """Return a side for the time that the cores need at least."""
    return lambda: seconds / CORES


def joblib_mapped(function: Any, values: Callable[[], Iterable[Any]]) -> Side:
    """Return a side that maps over joblib; its memory maps are made anew each time."""

    def side() -> float:
        import joblib

        given = list(values())
        with joblib.Parallel(n_jobs=CORES) as parallel:
            parallel(joblib.delayed(pause)(0.1) for _ in range(CORES))
            return timed(lambda: parallel(joblib.delayed(function)(each) for each in given))

    return side


def fresh_mapped(function: Any, values: Callable[[], Iterable[Any]]) -> Side:
    """Return a side that maps over our pool, with arrays made anew each time."""

    def side() -> float:
        given = list(values())
        return timed(lambda: list(engine(OURS).map(function, given)))

    return side


# ------------------------------------------------ the cold start

COLD = """
from flowpregel.func import entrypoint, task
def double(n):
    return 2 * n
step = task(double)
@entrypoint(executor="processes")
def flow(n):
    return step(n).result()
if __name__ == "__main__":
    assert 4 == flow.invoke(2)
"""


def cold() -> float:
    """Return the seconds of a whole program with one task, from its start to its end."""
    path = os.pathsep.join(each for each in sys.path if each)
    environment = {**os.environ, "PYTHONPATH": path or os.getcwd()}
    return timed(lambda: subprocess.run([sys.executable, "-c", COLD], check=True, env=environment))


def rows() -> list[Row]:
    """Return the goals."""
    found = [
        Row(
            name="RT", what="a round trip", unit="each", against="loky", goal=0.35,
            sides={
                OURS: job_by_job(),
                "loky": one_by_one("loky"),
                "ProcessPoolExecutor": one_by_one("ProcessPoolExecutor"),
                "ours, submit()": one_by_one(OURS),
            },
        ),
        Row(
            name="W4", what="16 CPU tasks of 100 ms", unit="in all", against="loky", goal=1.03,
            sides={name: mapped(name, spin, [0.1] * 16) for name in (OURS, "loky")},
        ),
        Row(
            name="W5b", what=f"{MANY:,} tasks of 20 µs, the pool alone", unit="in all",
            against="ideal", goal=3.0,
            sides={OURS: mapped(OURS, spin, [20e-6] * MANY), "ideal": ideal(MANY * 20e-6)},
        ),
        Row(
            name="W5b", what=f"{MANY:,} tasks of 20 µs, a flow", unit="in all",
            against="ideal", goal=3.0, repeats=3,
            sides={OURS: gathered(spin_task, [20e-6] * MANY), "ideal": ideal(MANY * 20e-6)},
        ),
        Row(
            name="W8", what="a program with one task, cold", unit="in all", against="0.4 s",
            goal=1.0, sides={OURS: cold, "0.4 s": lambda: 0.4},
        ),
    ]  # fmt: skip
    if HAS_LANGGRAPH:
        found += peer_rows()
    if HAS_JOBLIB:
        found += array_rows()
    return found


def peer_rows() -> list[Row]:
    """Return the goals against LangGraph."""
    return [
        Row(
            name="W1c", what="a superstep, its node in a worker", unit="each",
            against="langgraph", goal=0.75,
            sides={OURS: cycle(), "langgraph": peer_cycle(), "loky": one_by_one("loky")},
        ),
        Row(
            name="W3a", what="200 trivial tasks gathered", unit="in all",
            against="langgraph", goal=0.25,
            sides={OURS: gathered(same_task, range(200)), "langgraph": peer_gathered(range(200))},
        ),
    ]  # fmt: skip


def array_rows() -> list[Row]:
    """Return the goals against joblib's memory maps."""

    def own() -> list[Any]:
        return [np.ones(ARRAY) for _ in range(16)]

    def shared() -> list[Any]:
        return [np.ones(ARRAY)] * 16

    def sizes() -> list[int]:
        return [ARRAY] * 16

    return [
        Row(
            name=name, what=f"16 tasks, {what}", unit="in all", against="joblib", goal=goal,
            sides={OURS: fresh_mapped(function, values), "joblib": joblib_mapped(function, values)},
        )
        for name, what, function, values, goal in (
            ("W6a", "each its own 50 MB array", total, own, 0.6),
            ("W6b", "all the same 50 MB array", total, shared, 0.3),
            ("W6c", "each returning a 50 MB array", make, sizes, 0.25),
        )
    ]  # fmt: skip


def main() -> int:
    """Measure everything here; return how many goals were missed."""
    from tests.benchmarks import harness

    try:
        return harness.run(rows(), None)
    finally:
        close_engines()


if __name__ == "__main__":
    sys.exit(main())
