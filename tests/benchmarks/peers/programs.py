"""Whole programs in new processes: importing, a first task from cold, the main job."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks import work
from tests.benchmarks.model import Working

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"

DURABLE = {
    "flowpregel": """
from flowpregel import entrypoint, task
from flowpregel.checkpoint.lmdb import LMDBSaver
""",
    "langgraph": """
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task
""",
    "dbos": "from dbos import DBOS, SetWorkflowID",
    "prefect": """
from prefect import flow, task
from prefect.task_runners import ProcessPoolTaskRunner
""",
    "temporalio": """
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker
""",
    "huey": "from huey import SqliteHuey",
    "parsl": """
import parsl
from parsl.config import Config
from parsl.dataflow.memoization import BasicMemoizer
from parsl.executors import HighThroughputExecutor
""",
    "joblib": "from joblib import Memory, Parallel, delayed",
    "distributed": "from distributed import Client, LocalCluster",
    "ray": "import ray",
    "loky": "import loky",
}
"""The imports of a program that keeps its results on disk, by the module that it needs.
Those of Dask, Ray and loky are of a program that keeps nothing: they keep nothing.
"""

FIRST_TASK = {
    "flowpregel": """
from flowpregel.func import entrypoint, task
def double(n):
    return 2 * n
step = task(double)
@entrypoint(executor="processes")
def flow(n):
    return step(n).result()
if __name__ == "__main__":
    assert 4 == flow.invoke(2)
""",
    "loky": """
import loky
def double(n):
    return 2 * n
if __name__ == "__main__":
    with loky.ProcessPoolExecutor(2) as pool:
        assert 4 == pool.submit(double, 2).result()
""",
}
"""Programs with one task in a worker process."""


def run(*arguments: str) -> str:
    """Run Python with *arguments*; return what it printed."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextlib.contextmanager
def imported(module: str) -> Working:
    """Yield the imports of a program in a new process; the time is theirs alone."""
    code = (
        f"import time; t = time.perf_counter()\n{DURABLE[module].strip()}\n"
        "print(time.perf_counter() - t)"
    )
    yield lambda: float(run("-c", code))


@contextlib.contextmanager
def first_task(name: str) -> Working:
    """Yield a program with one task, from its start to its end."""
    yield lambda: work.seconds_of(lambda: run("-c", FIRST_TASK[name]))


@contextlib.contextmanager
def census(files: int | None, by_hand: bool = False) -> Working:
    """Yield the main job as a whole program over copies of the standard library's
    files.

    Args:
        files: How many; None for all.
        by_hand: Whether by a loop over loky that keeps nothing.
    """
    adopt_orphans()
    sys.path.insert(0, str(EXAMPLES))
    from census_measure import python_files

    paths = python_files([str(Path(os.__file__).parent)])[:files]
    with work.folder() as folder:
        for _, path in paths:
            copy = folder / "roots" / Path(path).relative_to(Path(os.__file__).parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(Path(path).read_bytes())

        def turn() -> dict[str, float]:
            with work.folder() as store:
                roots = str(folder / "roots")
                if by_hand:
                    program = [str(ROOT / "tests/benchmarks/census_by_hand.py"), roots]
                else:
                    program = [
                        str(EXAMPLES / "census.py"),
                        roots,
                        "--store",
                        str(store / "store"),
                    ]
                    program += ["--page", str(store / "page.html")]
                before, begun = _cpu(), time.perf_counter()
                run(*program)
                seconds = time.perf_counter() - begun
                return {"seconds": seconds, "cpu": _cpu() - before}

        yield turn


def adopt_orphans() -> None:
    """Become the parent of workers that outlive their program, so that their time
    counts.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def _cpu() -> float:
    """Return the CPU seconds of all processes that were started from here and have
    ended.
    """
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
