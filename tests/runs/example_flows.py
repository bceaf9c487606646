"""The five examples as workflows of a folder, on small real input, with their effects
told.

Each goes on when it is called again with the same folder: the crash harness needs
that, and the examples promise it. They are the examples' own programs; only the
tasks that do the work also say so, with `effect`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.executors.processes import ProcessExecutor
from flowpregel.func import task
from flowpregel.testing.crash import effect
from flowpregel.types import Command

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.append(str(EXAMPLES))

import agent_loop  # noqa: E402 - found by the line above
import approval  # noqa: E402 - as above
import census  # noqa: E402 - as above
import parameter_study  # noqa: E402 - as above
import pipeline  # noqa: E402 - as above

_act, _count, _measure = agent_loop.act, pipeline.count, census.measure.func
_pay, _simulate = approval.pay.func, parameter_study.simulate.func
TURNS = 3
CLAIM = {"purpose": "trip", "amount": 1800}


def act(state: agent_loop.State) -> dict[str, Any]:
    """Run the tool that was asked for, and tell so."""
    effect(f"act {len(state['history'])}")
    return _act(state)


def count(part: str) -> dict[str, Any]:
    """Count the words of one part, and tell so."""
    effect(f"count {part[:20].split()}")
    return _count(part)


@task
def measure(package: str, path: str) -> Any:
    """Measure one file, and tell so."""
    effect(f"measure {Path(path).name}")
    return _measure(package, path)


@task
def pay(claim: approval.Claim) -> str:
    """Pay, and tell so."""
    effect(f"pay {claim['amount']}")
    return _pay(claim)


@task
def simulate(cell: parameter_study.Cell, noise: Any) -> parameter_study.Price:
    """Simulate a cell, and tell so."""
    effect(f"simulate {cell.volatility} {cell.strike}")
    return _simulate(cell, noise)


agent_loop.act, approval.pay, census.measure = act, pay, measure
parameter_study.simulate, pipeline.count = simulate, count
parameter_study.VOLATILITIES, parameter_study.STRIKES = (0.1, 0.3), (90.0, 110.0)
pipeline.PART = 60


@contextmanager
def place_of(folder: Path, executor: str) -> Iterator[tuple[LMDBSaver, Any]]:
    """Open what an example is given: its store, and where its tasks run.

    The pool has one worker, so that each run passes the same points.
    """
    with LMDBSaver(folder / "store") as saver:
        if executor != "processes":
            yield saver, executor
            return
        with ProcessExecutor(1) as pool:
            yield saver, pool


def study(folder: Path, executor: str, durability: Any) -> Any:
    """Four cells, the tasks of one body."""
    with place_of(folder, executor) as (saver, where):
        flow = parameter_study.study(saver, where)
        prices = flow.invoke(5_000, thread_id="1", run_id="one", durability=durability)
    return parameter_study.table(prices)


def words(folder: Path, executor: str, durability: Any) -> Any:
    """A graph with sends: the words of two examples' source."""
    texts = [str(EXAMPLES / name) for name in ("pipeline.py", "approval.py")]
    with place_of(folder, executor) as (saver, where):
        app = pipeline.pipeline(saver, where)
        given = {"paths": texts}
        return app.invoke(given, thread_id="1", run_id="one", durability=durability)[
            "report"
        ]


def loop(folder: Path, executor: str, durability: Any) -> Any:
    """A graph with a loop and a history of deltas."""
    given = {"history": [("goal", "27")], "turns": 0, "limit": TURNS}
    with place_of(folder, executor) as (saver, where):
        app = agent_loop.agent(saver, where)
        return app.invoke(given, thread_id="1", run_id="one", durability=durability)[
            "history"
        ]


def files(folder: Path, executor: str, durability: Any) -> Any:
    """A census of the examples; its log is an effect outside."""
    log = folder / "measured"
    os.environ[census.LOG] = str(log)
    with place_of(folder, executor) as (saver, where):
        flow = census.census(saver, where)
        found = flow.invoke(
            [str(EXAMPLES)], thread_id="1", run_id="one", durability=durability
        )
    # A line when a file is begun, and one with how long it took.
    measured = {line.partition("\t")[0] for line in log.read_text().splitlines()}
    assert found["files"] == len(measured)
    return found["files"], found["lines"]


def claim(folder: Path, executor: str, durability: Any) -> Any:
    """Two people are asked at once, and answer one after the other."""
    os.environ["FLOWPREGEL_EXECUTOR"] = executor
    with LMDBSaver(folder / "store") as saver:
        flow = approval.approval(saver)
        result = flow.invoke(CLAIM, thread_id="1", run_id="one", durability=durability)
        while isinstance(result, dict):
            first = min(result["__interrupt__"], key=lambda asked: asked.value["who"])
            answers = Command(resume={first.id: "yes"})
            result = flow.invoke(answers, thread_id="1", durability=durability)
        return result


EVERY: dict[str, Callable[[Path, str, Any], Any]] = {
    each.__name__: each for each in (study, words, loop, files, claim)
}
