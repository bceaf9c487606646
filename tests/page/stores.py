"""What the page is to show: a plain store, one full of what must not be obeyed, a
census.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowpregel import LMDBSaver, entrypoint, interrupt, task
from flowpregel._core.records import Address
from flowpregel.errors import UnansweredError
from flowpregel.graph import END, START, StateGraph

ROOT = Path(__file__).parents[2]
MARKUP = (
    '<script>window.hit = 1</script><img src=x onerror="window.hit = 1"> </script><!--'
)
ESCAPES = "\x1b]0;title\x07\x1b[2J \u202egpj.exe \x00"
HOSTILE = f"{MARKUP} {ESCAPES} ${{7*7}} {{{{7*7}}}} javascript:alert(1)"


class Canary:
    """Its pickle writes a file when it is read."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (self.place,)


@task
def double(n: int) -> int:
    return 2 * n


@task
def invert(n: int) -> float:
    return 1 / n


@task
def hold(place: str, text: str) -> list[Any]:
    return [text, {text: text}, Canary(place)]


@task(executor="processes")
def chatter(text: str) -> None:
    print(text)


@task
def fail(text: str) -> None:
    raise ValueError(text)


@entrypoint(executor="inline")
def sums(numbers: list[int]) -> int:
    return sum(double(n).result() for n in numbers)


@entrypoint(executor="inline")
def shares(numbers: list[int]) -> float:
    doubled = [double(n).result() for n in numbers]
    return sum(invert(n).result() for n in doubled)


@entrypoint(executor="inline")
def allow(item: str) -> str:
    double(1).result()
    return f"{item}: {interrupt({'question': 'Publish it?', 'item': item})}"


@entrypoint(executor="inline")
def hostile(given: list[str]) -> Any:
    place, text = given
    chatter(text).result()
    hold(place, text).result()
    return interrupt({"question": text})


@entrypoint(executor="inline")
def failing(given: list[str]) -> Any:
    place, text = given
    hold(place, text).result()
    return fail(text).result()


def plain_store(path: Path) -> str:
    """Make a store with a run that is done, one that failed and one that waits."""
    with LMDBSaver(path) as saver:
        sums.copy({"checkpointer": saver}).run([1, 2, 3], id="adds")
        with pytest.raises(ZeroDivisionError):
            shares.copy({"checkpointer": saver}).run([1, 0], id="divides")
        with pytest.raises(UnansweredError):
            allow.copy({"checkpointer": saver}).run("the report", id="asks")
    return str(path)


def long_store(path: Path, count: int) -> str:
    """Make a store with a run of so many supersteps."""

    def add(state: dict[str, int]) -> dict[str, int]:
        return {"sum": state["sum"] + 1}

    graph = StateGraph(dict[str, int]).add_node(add).add_edge(START, "add")
    graph.add_conditional_edges(
        "add", lambda state: "add" if state["sum"] < count else END
    )
    with LMDBSaver(path) as saver:
        program = graph.compile(checkpointer=saver)
        program.invoke({"sum": 0}, thread_id="long", recursion_limit=count + 1)
    return str(path)


def hostile_store(path: Path, canary: Path) -> str:
    """Make a store with two runs whose names, values, question and error are to be
    obeyed.

    Args:
        path: Where to.
        canary: What exists once a pickle in it was read.
    """
    given = [str(canary), HOSTILE]
    with LMDBSaver(path) as saver:
        app = hostile.copy({"checkpointer": saver})
        with pytest.raises(UnansweredError):
            app.run(given, id=f"asks {HOSTILE}")
        with pytest.raises(ValueError, match="script"):
            failing.copy({"checkpointer": saver}).run(given, id=f"fails {HOSTILE}")
        saver.load(Address(f"fails {HOSTILE}"))
    canary.rmdir()  # a reader that unpickles does make it
    return str(path)


@contextmanager
def census(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the census of what is in ``folder/source``, and kill it and all that it
    started.
    """
    program = str(ROOT / "examples" / "census.py")
    with running_python(program, "source", cwd=folder) as process:
        yield process


@contextmanager
def running_python(
    *words: str, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``python`` with this repository on its path, and kill it and all that it
    started.
    """
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def steady(folder: Path, name: str = "steady") -> Iterator[str]:
    """Run a flow whose calls go on all the time, and give its store.

    A file ``stop`` in *folder* ends it. Its thread has the name of the flow.
    """
    store = str(folder / "steady.lmdb")
    LMDBSaver(store).close()
    flow = f"{Path(__file__).with_name('live_flow.py')}:{name}"
    words = ["run", flow, f"--id={name}", f"--input={json.dumps(str(folder))}"]
    with running_python("-m", "flowpregel.cli", *words, f"--store={store}", "--quiet"):
        yield store
