"""What can die on a cluster, and what is promised then: one function a row."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Thread, Timer
from typing import Any

from flowpregel.checkpoint.memory import InMemorySaver
from flowpregel.errors import ExecutorUnavailableError
from flowpregel.func import entrypoint
from tests.cluster import network
from tests.cluster.flows import echo, fragile, steady

BOUND = 60.0


def run_steady(
    cluster: Any, count: int, seconds: float, strike: Callable[[], Any]
) -> tuple[Path, float]:
    """Run tasks of some seconds each; check the results; return their notes and the
    time.

    When one has begun on each of the machines, *strike* is called.
    """
    file = strike_when_begun(cluster, strike)
    began = time.monotonic()
    with cluster.executor() as executor:

        @entrypoint(executor=executor, checkpointer=InMemorySaver())
        def flow(count: int) -> list[int]:
            return [
                each.result()
                for each in [steady(str(file), n, seconds) for n in range(count)]
            ]

        assert [*range(count)] == flow.invoke(count, thread_id="1")
    return file, time.monotonic() - began


def strike_when_begun(cluster: Any, strike: Callable[[], Any]) -> Path:
    """Call *strike* when three tasks have begun; return the file for their notes."""
    file: Path = cluster.folder / "notes"
    file.touch()

    def wait_and_strike() -> None:
        network.wait_for(lambda: len(begun(file)) >= 3, BOUND, "three tasks have begun")
        strike()

    Thread(target=wait_and_strike, daemon=True).start()
    return file


def begun(file: Path) -> Counter[str]:
    """Return how often each task has begun."""
    words = (line.split() for line in file.read_text().splitlines())
    return Counter(number for what, number, _ in words if what == "begin")


def kill_a_busy_machine(file: Path) -> None:
    """Kill the machine on which the last task has begun."""
    last_line = file.read_text().splitlines()[-1]
    pid = int(last_line.split()[-1])
    [name] = [name for name in network.NAMES if pid in network.pids_on(name)]
    network.kill_all_on(name)


def worker_process(cluster: Any) -> str:
    """a worker process dies: its task alone, with a report, is tried again by its
    policy
    """
    with cluster.executor() as executor:

        @entrypoint(executor=executor)
        def flow(count: int) -> list[int]:
            file = str(cluster.folder / "mark")
            return [each.result() for each in [fragile(file, n) for n in range(count)]]

        assert [0, 1, 2] == flow.invoke(3)
    return "three deaths, three results"


def machine(cluster: Any) -> str:
    """a machine dies: its tasks begin again elsewhere"""

    notes = cluster.folder / "notes"
    file, seconds = run_steady(cluster, 9, 3.0, lambda: kill_a_busy_machine(notes))
    again = sum(begun(file).values()) - 9
    assert 1 <= again <= 3, again
    return f"{again} began again; {seconds:.0f} s in all"


def large_values(cluster: Any) -> str:
    """a machine dies with values of 1 B, 1 MB and 32 MB, in and out: none is lost"""
    notes = cluster.folder / "notes"
    file = strike_when_begun(cluster, lambda: kill_a_busy_machine(notes))
    values = [bytes([size % 256]) * size for size in (1, 1 << 20, 32 << 20)]
    with cluster.executor() as executor:

        @entrypoint(executor=executor)
        def flow(count: int) -> bool:
            calls = [
                (value, echo(str(file), number, 1.0, value))
                for number in range(count)
                for value in values
            ]
            return all(value == call.result() for value, call in calls)

        began = time.monotonic()
        assert flow.invoke(5)
    again = sum(begun(file).values()) - 15
    assert 1 <= again <= 6, again
    return f"{again} began again; {time.monotonic() - began:.0f} s in all"


def slow_link(cluster: Any) -> str:
    """a value needs 16 s on the wire, in and out: its task runs once"""
    file = cluster.folder / "notes"
    for name in network.NAMES:
        network.slow_down(name, "4mbit")
    value = bytes(range(256)) * (1 << 15)
    with cluster.executor() as executor:

        @entrypoint(executor=executor)
        def flow(count: int) -> bool:
            calls = [echo(str(file), number, 0.0, value) for number in range(count)]
            return all(value == call.result() for call in calls)

        began = time.monotonic()
        assert flow.invoke(3)
    assert 3 == sum(begun(file).values())
    return f"three tasks in {time.monotonic() - began:.0f} s"


def partition(cluster: Any) -> str:
    """the network of a machine is cut: its tasks begin again elsewhere, none is
    recorded twice
    """

    def end() -> None:
        network.cut("fp2")
        Timer(25, network.mend, ("fp2",)).start()

    file, seconds = run_steady(cluster, 6, 8.0, end)
    ends = Counter(
        line for line in file.read_text().splitlines() if line.startswith("end")
    )
    again = sum(begun(file).values()) - 6
    assert again >= 1
    assert seconds < BOUND
    return f"{again} began again, {len(ends) - 6} ended twice; {seconds:.0f} s in all"


def scheduler(cluster: Any) -> str:
    """the scheduler dies: ExecutorUnavailableError, within a bounded time"""
    times: list[float] = []

    def end() -> None:
        cluster.scheduler.kill()
        times.append(time.monotonic())

    try:
        run_steady(cluster, 6, 300.0, end)
    except ExecutorUnavailableError as error:
        waited = time.monotonic() - times[0]
        assert waited < 30, waited
        network.wait_for(lambda: not tasks_left(), 15, "the machines end the tasks")
        return f"after {waited:.0f} s: {str(error).splitlines()[0]}"
    raise AssertionError("nothing was raised")


def coordinator(cluster: Any) -> str:
    """the program with the flow is killed: 10 s later nothing of it runs on any
    machine
    """
    process, _ = start_program(cluster, 600.0)
    process.kill()
    process.wait()
    try:
        seconds = network.wait_for(lambda: not tasks_left(), 10, "nothing is left")
    except TimeoutError:
        print(*tasks_left(), sep="\n")
        raise
    return f"after {seconds:.1f} s"


def stopped(cluster: Any) -> str:
    """the program with the flow is stopped for 20 s: it ends with all results"""
    process, file = start_program(cluster, 5.0)
    process.send_signal(signal.SIGSTOP)
    time.sleep(20)
    process.send_signal(signal.SIGCONT)
    assert 0 == process.wait(BOUND)
    return f"{sum(begun(file).values()) - 6} began again"


def start_program(cluster: Any, seconds: float) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a program with tasks of some seconds; return it and the file for their
    notes when three tasks have begun.
    """
    file: Path = cluster.folder / "notes"
    file.touch()
    command = [
        sys.executable,
        "-m",
        "tests.cluster.coordinator",
        cluster.url,
        str(file),
        str(seconds),
    ]
    process = subprocess.Popen(command)
    network.wait_for(lambda: len(begun(file)) >= 3, BOUND, "three tasks have begun")
    return process, file


def tasks_left() -> list[str]:
    """Return the worker processes of ours on all machines."""
    lines = [line for name in network.NAMES for line in network.commands_on(name)]
    return [line for line in lines if "loky.backend.popen" in line]


def late_machine(cluster: Any) -> str:
    """a machine comes while a run is under way: it is used"""
    network.kill_all_on("fp3")
    network.wait_for(lambda: cluster.count() == 2, BOUND, "two machines")
    Timer(3, lambda: cluster.workers.update(fp3=cluster.start_worker("fp3"))).start()
    file, seconds = run_steady(cluster, 24, 1.0, lambda: None)
    return f"{len(begun(file))} tasks in {seconds:.0f} s"


def no_machine(cluster: Any) -> str:
    """all machines die: ExecutorUnavailableError, after the executor's timeout"""
    times: list[float] = []

    def end() -> None:
        for name in network.NAMES:
            network.kill_all_on(name)
        times.append(time.monotonic())

    try:
        run_steady(cluster, 6, 300.0, end)
    except ExecutorUnavailableError as error:
        seconds = time.monotonic() - times[0]
        assert seconds < BOUND
        return f"after {seconds:.0f} s: {str(error).splitlines()[0]}"
    raise AssertionError("nothing was raised")


DEATHS = (
    worker_process,
    machine,
    large_values,
    slow_link,
    partition,
    scheduler,
    coordinator,
    stopped,
    late_machine,
    no_machine,
)
