"""P1: a superstep in PostgreSQL, ours and the peers' in turns on one server; and a
failover.

Run it with ``python -m tests.benchmarks.postgres [supersteps [turns]]`` on a machine
that does nothing else. The server is started for it, with fsync on. DBOS takes part
where it is installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import work
from tests.postgres_server import serving, why_not

MOST = {"langgraph + Postgres": 0.6, "DBOS": 0.35}
"""What share of a peer's time ours may be."""
TTL = 3.0
SPARE = 2.0
"""Seconds after which a run goes on whose lease is out."""
PROGRAM = """
import os, pathlib, time
from flowpregel.plugins.postgres import PostgresSaver
from flowpregel.func import entrypoint, task

@task
def step(n):
    with open("made", "a") as log:
        log.write(f"{n}\\n")
    if n == 3 and not pathlib.Path("go").exists():
        time.sleep(1)  # what has ended is recorded by then
        os.kill(os.getpid(), 9)
    return n

SAVER = PostgresSaver(os.environ["URL"], lease_ttl=%s)


@entrypoint(checkpointer=SAVER, executor="threads")
def job(numbers):
    return [step(n).result() for n in numbers]

if __name__ == "__main__":
    job.run([0, 1, 2, 3, 4], id="a")
"""


def main() -> int:
    """Measure, print what was found, and return 1 if a goal is missed."""
    if reason := why_not():
        sys.stdout.write(f"skipped: {reason}\n")
        return 0
    count, turns = (*map(int, sys.argv[1:3]), *(300, 7)[len(sys.argv) - 1 :])[:2]
    with serving() as server, contextlib.ExitStack() as stack:
        sides: dict[str, Callable[[], Any]] = {
            "flowpregel": stack.enter_context(ours(server.url, count)),
            "langgraph + Postgres": stack.enter_context(langgraph(server.url, count)),
            "an insert and its commit": stack.enter_context(inserts(server.url, count)),
        }
        if importlib.util.find_spec("dbos"):
            from tests.benchmarks.peers import dbos

            sides["DBOS"] = stack.enter_context(dbos.steps(count, server.url))
        found: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(turns + 1):
            for name, side in sides.items():
                seconds = side()
                if turn:  # the first one warms up
                    found[name].append(seconds)
        medians = {name: statistics.median(many) for name, many in found.items()}
        for name, median in medians.items():
            sys.stdout.write(f"{name:26} {median * 1e6:8.0f} µs a superstep\n")
        missed = False
        for peer in MOST.keys() & medians.keys():
            ratio = medians["flowpregel"] / medians[peer]
            missed |= ratio > MOST[peer]
            sys.stdout.write(f"P1: {ratio:.2f} x {peer} (at most {MOST[peer]})\n")
        seconds = failover(server.url)
        sys.stdout.write(f"failover: {seconds:.1f} s with a ttl of {TTL:.0f} s\n")
    return int(missed or seconds > TTL + SPARE)


@contextlib.contextmanager
def ours(url: str, count: int) -> Iterator[Callable[[], float]]:
    """Yield a cycle of *count* supersteps of ours; it returns the seconds of one."""
    from flowpregel.plugins.postgres import PostgresSaver
    from tests.benchmarks.peers import ours

    with PostgresSaver(url) as saver:
        app = ours.cycle(count, checkpointer=saver, executor="inline")

        def turn() -> float:
            run: Any = {"thread_id": ours.new_thread(), "recursion_limit": count + 10}
            return work.seconds_of(
                lambda: app.invoke(0, durability="sync", **run), count
            )

        yield turn


@contextlib.contextmanager
def langgraph(url: str, count: int) -> Iterator[Callable[[], float]]:
    """Yield the same cycle of LangGraph's."""
    from langgraph import channels, pregel
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.pregel._write import ChannelWriteEntry

    from tests.benchmarks.peers import langgraph

    entry = ChannelWriteEntry("v", skip_none=True)
    node = pregel.NodeBuilder().subscribe_only("v").do(work.UpTo(count)).write_to(entry)
    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        app = pregel.Pregel(
            nodes={"n": node},
            channels={"v": channels.LastValue(int)},
            input_channels="v",
            output_channels="v",
            checkpointer=saver,
        )

        def turn() -> float:
            config: Any = {"configurable": {"thread_id": langgraph.new_thread()}}
            config["recursion_limit"] = count + 10
            return work.seconds_of(
                lambda: app.invoke(0, config, durability="sync"), count
            )

        yield turn


@contextlib.contextmanager
def inserts(url: str, count: int) -> Iterator[Callable[[], float]]:
    """Yield *count* inserts of 1 kB, each a transaction of its own."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (number serial PRIMARY KEY, data bytea)")
        data = os.urandom(1_000)

        def insert() -> None:
            for _ in range(count):
                connection.execute("INSERT INTO kept (data) VALUES (%s)", [data])

        yield lambda: work.seconds_of(insert, count)


def failover(url: str) -> float:
    """Return the seconds from the death of a run's process until another has gone on
    with it.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.py").write_text(PROGRAM % TTL)
        place: Any = {
            "cwd": folder,
            "env": {**os.environ, "URL": url, "PYTHONPATH": os.getcwd()},
        }
        command = [sys.executable, "-m", "flowpregel.cli", "recover", "--store", url]
        subprocess.run([sys.executable, "job.py"], check=False, **place)
        died = time.monotonic()
        (folder / "go").touch()
        with subprocess.Popen(
            [*command, "--every", "0.5", "--quiet"], **place
        ) as standby:
            while "4" not in (folder / "made").read_text().split():
                time.sleep(0.01)
            seconds = time.monotonic() - died
            standby.kill()
        made = (folder / "made").read_text().split()
        assert ["0", "1", "2", "3", "3", "4"] == made, made
    return seconds


if __name__ == "__main__":
    sys.exit(main())
