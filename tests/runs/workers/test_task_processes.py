"""What a task does to its process ends with it: the next task finds the process as it
was.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowpregel.errors import ConfigurationError
from flowpregel.executors import ProcessExecutor
from flowpregel.func import entrypoint, task
from flowpregel.graph import END, START, StateGraph
from tests.process_changes import (
    CHANGES,
    change_folder,
    close_descriptors,
    close_streams,
    descriptors,
    enter,
    exchange_descriptors,
    folder,
    forget_marks,
    lose_copies,
    redirect_descriptors,
    remove_and_leave,
)
from tests.runs.pooling import wait_until

pytestmark = pytest.mark.slow
LONG = 60.0
"""Seconds that nothing here takes, unless it is broken."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    """A pool of one worker, so that the next task meets what the last one left."""
    with ProcessExecutor(1) as pool:
        call(pool, abs, 1)
        yield pool


def call(pool: ProcessExecutor, function: Callable[..., Any], *given: Any) -> Any:
    return pool.submit(function, *given).result(LONG)


# ---------------------------------------------------------------- what is restored


@pytest.mark.parametrize(
    ("change", "look"),
    CHANGES,
    ids=lambda function: function.__name__,
)
def test_the_next_task_finds_it_as_it_was(
    change: Callable[[], None], look: Callable[[], Any], pool: ProcessExecutor
) -> None:
    """In the same process: putting it back is enough."""
    before, pids = call(pool, look), pool.worker_pids()

    call(pool, change)

    assert before == call(pool, look)
    assert pids == pool.worker_pids()


def test_a_run_of_another_flow_finds_it_as_it_was(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    """A relative file is written where the program is."""

    @task
    def leave(folder: str) -> None:
        os.chdir(folder)

    @task
    def where() -> str:
        return os.getcwd()

    @entrypoint(executor=pool)
    def first(folder: str) -> None:
        leave(folder).result()

    @entrypoint(executor=pool)
    def second(_: int) -> str:
        return where().result()

    first.invoke(str(tmp_path))

    assert os.getcwd() == second.invoke(1)


def test_what_tasks_print_arrives_after_one_has_closed_its_streams(
    pool: ProcessExecutor, capfd: pytest.CaptureFixture[str]
) -> None:
    """What Python prints, and what C code writes to the descriptor."""
    call(pool, close_streams)
    call(pool, close_descriptors)
    call(pool, print, "from Python")
    call(pool, os.system, "echo from C")

    def has_arrived() -> bool:
        seen.append(capfd.readouterr().out)
        return "from Python" in "".join(seen) and "from C" in "".join(seen)

    seen: list[str] = []
    wait_until(has_arrived, LONG)


@pytest.mark.parametrize(
    "change", [redirect_descriptors, exchange_descriptors, close_descriptors]
)
def test_descriptors_are_restored_where_open_files_cannot_be_marked(
    change: Callable[[], None],
) -> None:
    """As on systems other than Linux: they are known by what they are open on."""
    with ProcessExecutor(1, initializer=forget_marks) as pool:
        before = call(pool, descriptors)
        pids = pool.worker_pids()

        call(pool, change)

        assert before == call(pool, descriptors)
        assert pids == pool.worker_pids()


def test_the_initializer_says_what_tasks_find(tmp_path: Path) -> None:
    """What it sets up is what the worker is put back to."""
    with ProcessExecutor(1, initializer=os.chdir, initargs=(str(tmp_path),)) as pool:
        call(pool, change_folder)

        assert str(tmp_path) == call(pool, folder)


# what cannot be restored ---------------------------------------------------


def lower_for_good() -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.setuid(65534)  # or root could raise it again
    return os.getpid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_worker_is_replaced_if_its_user_was_changed(pool: ProcessExecutor) -> None:
    """And its limit was lowered: no task after it meets either."""
    before = call(pool, os.getuid), call(pool, resource.getrlimit, resource.RLIMIT_CORE)

    spoiled = call(pool, lower_for_good)

    assert before == (
        call(pool, os.getuid),
        call(pool, resource.getrlimit, resource.RLIMIT_CORE),
    )
    assert spoiled != call(pool, os.getpid)


def test_a_worker_is_replaced_if_a_descriptor_is_lost(pool: ProcessExecutor) -> None:
    """Its stdout was closed, with the copy from which it would be restored."""
    spoiled = call(pool, lose_copies)

    assert spoiled != call(pool, os.getpid)
    assert "pipe" in call(pool, descriptors)[1]


def test_a_worker_is_replaced_if_its_folder_is_gone(tmp_path: Path) -> None:
    """It goes back to where it began, or it goes."""
    own = tmp_path / "own"
    with ProcessExecutor(1, initializer=enter, initargs=(str(own),)) as pool:
        before = call(pool, os.getpid)
        call(pool, remove_and_leave, str(own))

        assert before != call(pool, os.getpid)
        assert str(own) == call(pool, folder)


def test_no_task_is_lost_when_a_worker_is_replaced(pool: ProcessExecutor) -> None:
    """Those that were sent ahead run elsewhere, each once."""
    futures = [pool.submit(abs, -number) for number in range(200)]
    futures.append(pool.submit(lose_copies))
    futures += [pool.submit(abs, -number) for number in range(200)]

    results = [future.result(LONG) for future in futures]

    assert [*range(200)] == results[:200] == results[201:]
    # It begins no other task, though it may take an instant to end.
    later = [pool.submit(os.getpid) for _ in range(100)]
    assert results[200] not in [future.result(LONG) for future in later]


# ---------------------------------------------------------------- alarms that come late


def ring_soon() -> str:
    def ring(*_: Any) -> None:
        raise TimeoutError("late")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-4)
    with contextlib.suppress(TimeoutError):
        return "ended"
    return "rung"


def test_an_alarm_that_a_task_leaves_hits_no_other_task(pool: ProcessExecutor) -> None:
    """It may hit its own task's last instants; the worker and other tasks do not
    notice.
    """
    pids = pool.worker_pids()

    for _ in range(100):
        first, second = pool.submit(ring_soon), pool.submit(abs, -1)
        assert isinstance(first.exception(LONG), TimeoutError | None)
        assert 1 == second.result(LONG)

    assert pids == pool.worker_pids()


def leave_an_alarm_blocked() -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    os.kill(os.getpid(), signal.SIGALRM)


def test_an_alarm_that_comes_when_its_handler_is_gone_ends_no_worker(
    pool: ProcessExecutor,
) -> None:
    """Without a handler it would end the process."""
    pids = pool.worker_pids()

    assert call(pool, leave_an_alarm_blocked) is None
    assert 1 == call(pool, abs, -1)
    assert pids == pool.worker_pids()


# ---------------------------------------------------------------- inherited descriptors


def set_all(blocking: bool) -> None:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            os.set_blocking(int(name), blocking)


def set_all_and_return_much() -> list[int]:
    set_all(blocking=False)
    return [*range(1_000_000)]


def test_a_task_that_sets_descriptors_non_blocking_stops_nobody(
    pool: ProcessExecutor,
) -> None:
    """Its large result arrives, and the worker goes on."""
    pids = pool.worker_pids()

    assert 1_000_000 == len(call(pool, set_all_and_return_much))
    assert [*range(100)] == [*pool.map(abs, range(100), timeout=LONG)]
    assert pids == pool.worker_pids()


def wait_for(path: str) -> None:
    set_all(blocking=True)
    until = time.monotonic() + LONG
    while not os.path.exists(path) and time.monotonic() < until:
        time.sleep(0.01)


def test_a_task_that_sets_descriptors_blocking_stops_nobody(
    pool: ProcessExecutor, tmp_path: Path
) -> None:
    """While it runs, the coordinator takes back what waits behind it."""
    first = pool.submit(wait_for, str(tmp_path / "go"))
    others = [pool.submit(abs, -number) for number in range(20)]
    wait_until(lambda: len(pool.running()) == 1, LONG)

    assert others[-1].cancel()
    (tmp_path / "go").touch()

    assert first.result(LONG) is None
    assert [*range(19)] == [future.result(LONG) for future in others[:19]]


def test_the_program_keeps_its_descriptors_as_they_are(pool: ProcessExecutor) -> None:
    """Those of the resource trackers among them, to which all its processes write."""

    def pipes() -> dict[int, tuple[str, bool]]:
        found: dict[int, tuple[str, bool]] = {}
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                pipe = os.readlink(f"/proc/self/fd/{number}")
                if pipe.startswith(("pipe", "socket")):
                    found[number] = pipe, os.get_blocking(number)
        return found

    before = pipes()
    for blocking in (True, False):
        call(pool, set_all, blocking)
        after = pipes()

        assert before == {number: after[number] for number in before if number in after}


# a process for each call ---------------------------------------------------


@task(isolation="fresh")
def own_process(_: int) -> int:
    return os.getpid()


@task
def usual_process(_: int) -> int:
    return os.getpid()


def test_each_call_of_a_fresh_task_has_a_process_of_its_own(
    pool: ProcessExecutor,
) -> None:
    """Which has run no task before, and ends after it; other tasks keep theirs."""

    @entrypoint(executor=pool)
    def flow(count: int) -> tuple[list[int], list[int]]:
        fresh = [future.result() for future in own_process.map(range(count))]
        return fresh, [future.result() for future in usual_process.map(range(count))]

    fresh, usual = flow.invoke(3)

    assert 3 == len({*fresh})
    assert 1 == len({*usual})
    assert not {*fresh} & {*usual}
    wait_until(lambda: not {*fresh} & {*pool.worker_pids()}, LONG)


def test_a_fresh_call_may_call_and_be_called(pool: ProcessExecutor) -> None:
    """Nesting takes one more process each, and waits for nobody."""

    @task(isolation="fresh")
    def outer(number: int) -> list[int]:
        return [os.getpid(), own_process(number).result()]

    @entrypoint(executor=pool)
    def flow(number: int) -> list[int]:
        return outer(number).result()

    assert 2 == len({*flow.invoke(1)})


def test_a_node_may_be_isolated(pool: ProcessExecutor) -> None:
    """As a task may."""
    graph = StateGraph(dict)
    for name in ("first", "second"):
        graph.add_node(
            name,
            lambda state, name=name: {**state, name: os.getpid()},
            isolation="fresh",
        )
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)

    found = graph.compile(executor=pool).invoke({})

    assert found["first"] != found["second"]


@pytest.mark.parametrize("executor", ["threads", "inline"])
def test_isolation_is_refused_where_there_is_no_process(executor: str) -> None:
    """Loudly, by its name."""

    @entrypoint(executor=executor)
    def flow(number: int) -> int:
        return own_process(number).result()

    with pytest.raises(ConfigurationError, match="isolation"):
        flow.invoke(1)


def test_a_node_that_is_a_graph_is_not_isolated() -> None:
    """It has no process; its nodes have."""
    inner = StateGraph(dict).add_node("node", abs).add_edge(START, "node").compile()

    with pytest.raises(
        ConfigurationError, match="give isolation='fresh' to the nodes in it"
    ):
        StateGraph(dict).add_node("inner", inner, isolation="fresh")


def test_another_isolation_is_refused() -> None:
    """Where the task is made, and where a node is."""
    wrong: Any = "strict"

    with pytest.raises(ConfigurationError, match="isolation='strict'"):
        task(isolation=wrong)(abs)
    with pytest.raises(ConfigurationError, match="isolation='strict'"):
        StateGraph(dict).add_node("node", abs, isolation=wrong)
