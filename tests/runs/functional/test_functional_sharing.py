"""`@task(cache=True)`: results that are kept in the run's own store, and computed
once.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver as LangGraphSaver

from flowpregel.cache.memory import InMemoryCache
from flowpregel.channels import LastValue
from flowpregel.checkpoint.lmdb import LMDBSaver
from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ConfigurationError
from flowpregel.func import File, entrypoint, task
from flowpregel.policies import CachePolicy, RetryPolicy
from flowpregel.pregel import NodeBuilder, Pregel
from flowpregel.pregel.naming import as_checkpointer
from tests.runs.notes import Notes
from tests.runs.stores import ROOT


@pytest.fixture
def seen() -> Notes:
    """Return the notes of which calls were executed, in whatever process."""
    return Notes()


@pytest.fixture
def measure(seen: Notes) -> Any:
    """Return a task that shares its results."""

    @task(cache=True)
    def measure(item: Any) -> str:
        seen.append(str(item))
        return f"measured {item}"

    return measure


def flow_of(called: Any, executor: str, **options: Any) -> Any:
    """Return a workflow that makes a call for each item of its input."""

    @entrypoint(executor=executor, **options)
    def flow(items: list[Any]) -> list[Any]:
        return [future.result() for future in called.map(items)]

    return flow


def test_results_are_kept_in_the_store_of_the_runs(
    drive: Any, executor: str, measure: Any, seen: Notes, tmp_path: Path
) -> None:
    """They are there in another run, when the store has been closed in between."""
    for thread in "abc":
        with LMDBSaver(tmp_path / "runs.lmdb") as saver:
            flow = flow_of(measure, executor, checkpointer=saver)
            assert drive.invoke(flow, [1, 2], thread_id=thread) == [
                "measured 1",
                "measured 2",
            ]

    assert sorted(seen) == ["1", "2"]


def test_a_saver_in_memory_keeps_them_too(
    drive: Any, executor: str, measure: Any, seen: Notes
) -> None:
    """Each its own."""
    for saver in (InMemorySaver(), InMemorySaver()):
        flow = flow_of(measure, executor, checkpointer=saver)
        for thread in "ab":
            drive.invoke(flow, [1], thread_id=thread)

    assert seen == ["1", "1"]
    flow.clear_cache()


@pytest.mark.parametrize("form", ["checkpointer", "path", "url"])
def test_shared_results_of_a_task_are_cleared_where_the_runs_are_stored(
    drive: Any, measure: Any, seen: Notes, tmp_path: Path, form: str
) -> None:
    """`clear_cache` takes the checkpointer of the runs, or its path or URL."""
    location = "sqlite:///" if form == "url" else ""
    flow = flow_of(measure, "inline", checkpointer=f"{location}{tmp_path / 'runs'}")
    drive.invoke(flow, [1], thread_id="a")

    measure.clear_cache(
        flow.checkpointer if form == "checkpointer" else flow.checkpointer.location
    )
    drive.invoke(flow, [1], thread_id="b")
    drive.invoke(flow, [1], thread_id="c")

    flow.checkpointer.close()
    assert ["1", "1"] == seen


@pytest.mark.parametrize("is_async", [False, True])
def test_shared_results_of_a_saver_in_memory_are_cleared(
    drive: Any, measure: Any, seen: Notes, is_async: bool
) -> None:
    """`clear_cache` takes that saver."""
    saver = InMemorySaver()
    flow = flow_of(measure, "inline", checkpointer=saver)
    drive.invoke(flow, [1], thread_id="a")

    if is_async:
        asyncio.run(measure.aclear_cache(saver))
    else:
        measure.clear_cache(saver)
    drive.invoke(flow, [1], thread_id="b")

    assert ["1", "1"] == seen


@pytest.mark.parametrize("value", [None, as_checkpointer(LangGraphSaver())])
def test_what_has_no_cache_cannot_be_cleared(measure: Any, value: Any) -> None:
    """The error names what `clear_cache` takes."""
    with pytest.raises(ConfigurationError, match="or the checkpointer of the runs"):
        measure.clear_cache(value)


def test_a_path_is_a_cache(
    drive: Any, executor: str, measure: Any, seen: Notes, tmp_path: Path
) -> None:
    """A store of its own, for runs that are not kept."""
    for _ in range(2):
        flow = flow_of(measure, executor, cache=tmp_path / "results.lmdb")
        drive.invoke(flow, [1])
        flow.cache.close()

    assert seen == ["1"]


@pytest.mark.parametrize("cache", [7, "results", dict])
def test_what_is_no_cache_is_refused(cache: Any) -> None:
    """For a task it is a switch; where results are kept, the entrypoint says."""
    with pytest.raises(
        ConfigurationError,
        match="use True; the entrypoint sets where results are stored",
    ):
        task(cache=cache)(print)
    if not isinstance(cache, str):
        with pytest.raises(ConfigurationError, match="give a cache, or a path"):
            flow_of(None, "inline", cache=cache)


def test_equal_calls_of_one_run_are_one(
    drive: Any, executor: str, measure: Any, seen: Notes
) -> None:
    """One computes, the others wait."""
    flow = flow_of(measure, executor, cache=InMemoryCache())

    assert drive.invoke(flow, [1, 1, 1, 2]) == ["measured 1"] * 3 + ["measured 2"]
    assert sorted(seen) == ["1", "2"]


def test_equal_nodes_of_one_superstep_are_one(
    drive: Any, executor: str, seen: Notes
) -> None:
    """As calls are."""

    def measure(item: int) -> int:
        seen.append(item)
        return item

    builder = NodeBuilder().subscribe_only("in").do(measure).write_to("out")
    builder.add_cache_policy(CachePolicy(key_func=lambda _: "the same"))
    graph = Pregel(
        nodes={"measure": builder},
        channels={"in": LastValue(int), "out": LastValue(int)},
        input_channels="in",
        output_channels="out",
        cache=InMemoryCache(),
        executor=executor,
    )

    assert [drive.invoke(graph, 1), drive.invoke(graph, 2)] == [1, 1]
    assert seen == [1]


@pytest.mark.parametrize("store", ["memory", "lmdb"])
def test_two_runs_compute_it_once(store: str, tmp_path: Path) -> None:
    """The second one waits for the first, as long as that takes."""
    begun, may_end = threading.Event(), threading.Event()
    seen: list[int] = []

    @task(cache=True, version="1", executor="threads")
    def measure(item: int) -> int:
        seen.append(item)
        begun.set()
        assert may_end.wait(30)
        return item

    cache = InMemoryCache() if store == "memory" else tmp_path / "results.lmdb"
    flow = flow_of(measure, "threads", cache=cache)
    first = flow.start([1])
    assert begun.wait(30)
    second = flow.start([1])
    may_end.set()

    assert [first.result(30), second.result(30)] == [[1], [1]]
    assert seen == [1]
    assert any("__metadata__" in str(event) for event in second)


def test_what_fails_is_left_to_the_next(drive: Any, executor: str, seen: Notes) -> None:
    """A claim ends with the call, its retries included, however it ends."""

    @task(
        cache=True,
        retry_policy=RetryPolicy(max_attempts=2, initial_interval=0, retry_on=OSError),
    )
    def measure(item: int) -> int:
        seen.append(item)
        if len(seen) < 4:
            raise OSError("not yet")
        return item

    @entrypoint(cache=InMemoryCache(), executor=executor)
    def flow(items: list[int]) -> list[Any]:
        ends = []
        for future in measure.map(items):
            try:
                ends.append(future.result())
            except OSError as error:
                ends.append(str(error))
        return ends

    assert drive.invoke(flow, [1, 1]) == ["not yet", 1]
    assert seen == [1] * 4


def test_who_computes_is_not_waited_for_by_its_own_calls(
    drive: Any, executor: str
) -> None:
    """A call with the same key below it, which waited, would wait for ever."""

    @task(cache_policy=CachePolicy(key_func=lambda _: "the same"), executor="threads")
    def countdown(n: int) -> int:
        return 0 if n == 0 else countdown(n - 1).result() + 1

    assert drive.invoke(flow_of(countdown, executor, cache=InMemoryCache()), [3]) == [3]


PROGRAM = """
import os
import sys
import time
from flowpregel import entrypoint, task

@task(cache=True)
def measure(item):
    with open("seen", "a") as seen:
        seen.write(f"{item}\\n")
    while not os.path.exists("go"):
        time.sleep(0.01)
    return os.getpid()

@entrypoint(checkpointer="runs.lmdb", executor="inline")
def flow(item):
    return measure(item).result()

print(flow.run(1, id=sys.argv[1]))
"""


@pytest.mark.slow
def test_two_processes_compute_it_once_though_the_first_is_killed(
    tmp_path: Path,
) -> None:
    """Its claim ends with it."""
    (tmp_path / "program.py").write_text(PROGRAM)
    seen = tmp_path / "seen"

    def start(name: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "program.py", name],
            cwd=tmp_path,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )

    def wait(until: Callable[[], bool]) -> None:
        for _ in range(3_000):
            if until():
                return
            threading.Event().wait(0.01)
        raise AssertionError("it never came")

    first = start("first")
    wait(seen.exists)
    others = [start(name) for name in ("second", "third")]
    first.kill()
    first.communicate(timeout=30)
    wait(lambda: seen.read_text() == "1\n1\n")
    (tmp_path / "go").touch()
    results = {other.communicate(timeout=60)[0] for other in others}

    assert seen.read_text() == "1\n1\n"
    assert len(results) == 1


def test_a_file_counts_by_its_content(
    drive: Any, executor: str, measure: Any, seen: Notes, tmp_path: Path
) -> None:
    """Not by its name or its time."""
    table, copy = tmp_path / "table.csv", tmp_path / "copy.csv"
    table.write_text("a,b")
    copy.write_text("a,b")
    flow = flow_of(measure, executor, cache=InMemoryCache())
    drive.invoke(flow, [File(table)])
    os.utime(table, (1, 1))
    drive.invoke(flow, [File(table)])
    drive.invoke(flow, [File(str(copy))])
    assert len(seen) == 1

    table.write_text("a,c")
    drive.invoke(flow, [File(table)])
    assert len(seen) == 2

    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        drive.invoke(flow, [File(tmp_path / "nowhere.csv")])


def test_a_file_is_read_again_only_if_it_may_have_changed(tmp_path: Path) -> None:
    """Size and time come first."""
    table = tmp_path / "table.csv"
    table.write_text("a,b")
    os.utime(table, ns=(10**18, 10**18))
    file = File(table)
    before = file.__flowpregel_digest__()

    with table.open("r+") as opened:
        opened.write("x")
    os.utime(table, ns=(10**18, 10**18))

    assert file.__flowpregel_digest__() == before
    os.utime(table, ns=(10**18, 10**18 + 1))
    assert file.__flowpregel_digest__() != before
    assert [file == File(str(table)), hash(file) == hash(File(table))] == [True, True]


def test_a_file_is_its_path_in_text() -> None:
    """In an f-string too, whose specification is that of a text."""
    file = File("a.csv")

    assert ("a.csv", "a.csv", "  a.csv") == (str(file), f"{file}", f"{file:>7}")
    assert "File('a.csv')" == repr(file) == f"{file!r}"
