"""Random programs, the same for the same seed, and what they have to come to.

A program works in rounds. In each, some labours run side by side, and what each
returns depends on the sum of all rounds before: so a result that is lost, doubled or
taken for another one changes everything after it.
"""

from __future__ import annotations

import operator
import os
import random
import signal
import time
import zlib
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from flowpregel import END, START, Send, StateGraph
from flowpregel.func import entrypoint, task
from flowpregel.policies import RetryPolicy
from tests.soak.journal import LOG, note

MODES = ("sync", "sync", "async", "exit")
EXECUTORS = ("inline", "threads", "processes", "processes")
_LONGEST = 0.02
_NO_RETRY = RetryPolicy(max_attempts=1)


@dataclass(frozen=True)
class Recipe:
    """A program."""

    seed: int
    kind: str
    """An "entrypoint" or a "graph"."""
    durability: str
    rounds: tuple[tuple[str, ...], ...]
    """The names of the labours of each round."""

    def expected(self) -> int:
        """Return what it comes to."""
        total = 0
        for names in self.rounds:
            total += sum(worth(name, total) for name in names)
        return total


def recipe_of(seed: int) -> Recipe:
    """Return the program that *seed* stands for."""
    luck = random.Random(seed)
    rounds = tuple(
        tuple(f"{seed}.{number}.{index}" for index in range(luck.randint(1, 6)))
        for number in range(luck.randint(1, 6))
    )
    return Recipe(
        seed, luck.choice(["entrypoint", "graph"]), luck.choice(MODES), rounds
    )


def worth(name: str, total: int) -> int:
    """Return what a labour returns that is given *total*."""
    return zlib.crc32(f"{name} {total}".encode())


def toil(name: str, total: int) -> int:
    """Take a while, and return what the labour is worth; the journal has its start."""
    note("start", name)
    time.sleep(_LONGEST * (zlib.crc32(name.encode()) % 8) / 8)
    return worth(name, total)


@task(retry_policy=_NO_RETRY)
def labour(name: str, total: int) -> int:
    """Toil, as a task."""
    return toil(name, total)


class State(TypedDict, total=False):
    """What the nodes of a graph share."""

    total: Annotated[int, operator.add]
    done: Annotated[list[tuple[str, int]], operator.add]


def work(order: tuple[str, int]) -> dict[str, Any]:
    """Toil, as a node."""
    name, total = order
    value = toil(name, total)
    return {"total": value, "done": [(name, value)]}


def perform(recipe: Recipe, saver: Any, executor: Any) -> int:
    """Run a program, or go on with it, and return what it came to."""
    asked = {
        "thread_id": str(recipe.seed),
        "run_id": f"run {recipe.seed}",
        "durability": recipe.durability,
    }
    if recipe.kind == "entrypoint":
        return _entrypoint(recipe, saver, executor, asked)
    return _graph(recipe, saver, executor, asked)


def _entrypoint(
    recipe: Recipe, saver: Any, executor: Any, asked: dict[str, Any]
) -> int:
    @entrypoint(checkpointer=saver, executor=executor)
    def flow(total: int) -> int:
        for names in recipe.rounds:
            futures = [labour(name, total) for name in names]
            for name, future in zip(names, futures, strict=True):
                total += future.result()
                note("seen", name)
        return total

    result: int = flow.invoke(0, **asked)
    return result


def _graph(recipe: Recipe, saver: Any, executor: Any, asked: dict[str, Any]) -> int:
    graph = StateGraph(State)
    count = len(recipe.rounds)
    for number, names in enumerate(recipe.rounds):
        following = END if number + 1 == count else f"hub {number + 1}"
        graph.add_node(f"hub {number}", lambda state: {"total": 0}, executor="inline")
        graph.add_node(f"work {number}", work)
        graph.add_conditional_edges(
            f"hub {number}",
            lambda state, names=names, number=number: [
                Send(f"work {number}", (name, state["total"])) for name in names
            ],
            [f"work {number}"],
        )
        graph.add_edge(f"work {number}", following)
    graph.add_edge(START, "hub 0")
    app = graph.compile(checkpointer=saver, executor=executor)
    for update in app.stream({"total": 0, "done": []}, stream_mode="updates", **asked):
        for change in update.values():
            for name, _ in change.get("done", ()) if isinstance(change, dict) else ():
                note("seen", name)
    result: int = app.get_state(thread_id=asked["thread_id"]).values["total"]
    return result


def attempt(recipe: Recipe, store: str, executor: str, log: str) -> int:
    """Run a program once, in this process; write down how it ended; return the exit
    code.
    """
    from flowpregel.checkpoint.lmdb import LMDBSaver, StoreOptions
    from flowpregel.executors.processes import ProcessExecutor

    # Who starts a soak in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[LOG] = log
    note("invoke", executor)
    options = StoreOptions(lock_timeout=20)
    try:
        with LMDBSaver(store, options=options) as saver:
            if executor == "processes":
                with ProcessExecutor(2) as pool:
                    result = perform(recipe, saver, pool)
            else:
                result = perform(recipe, saver, executor)
            note("ok", str(result))
    except KeyboardInterrupt:
        note("interrupted", "")
        return 130
    except Exception as error:  # noqa: BLE001 - the checker says which are allowed
        note("fail", f"{type(error).__name__}: {error}".replace("\n", " ")[:300])
        return 1
    return 0
