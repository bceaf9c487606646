"""``python -m tests.soak.page --minutes 10``: the page's server while a run goes on.

A process runs a flow whose calls take a moment and tell how far they are, and a short
one over and over. The command ``flowpregel ui`` shows them to clients that poll as
often in ten minutes as a page that is open does in an hour: they follow the news, ask
for what has changed, and open calls, logs and supersteps. The memory of the server is
printed twenty times: its own, without the pages of the store's file that it has mapped,
which are the kernel's to take back. The exit status is 1 if after the warm-up it has
grown by more than `MOST_GROWTH`, or an answer was no answer.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from flowpregel.executors.processes.coordinator.crash_report import memory_sizes

MOST_GROWTH: Final = 8.0
"""Megabytes."""
WARM_UP: Final = 0.2
"""The share of the time after which the memory is compared with."""
STREAMS: Final = 6
"""Each shows what is new five times a second: six in ten minutes are one in an hour."""
SAMPLES: Final = 20
_OPENED: Final = 20
"""Of so many refreshes, one opens something."""
RUN: Final = """
import sys, time
from itertools import count
from flowpregel import LMDBSaver, entrypoint, report_progress, task

@task
def work(n):
    for part in range(4):
        report_progress(part, 4, f"part {part}")
        time.sleep(0.02)
    print("worked", n)
    return {"n": n, "squares": [i * i for i in range(n % 50)]}

@entrypoint(executor="threads")
def long(given):
    for n in count():
        work(n).result()
        if n % 10 == 0:
            short.invoke(n, thread_id="short")

@entrypoint(executor="inline")
def short(n):
    return work(n).result()["n"]

with LMDBSaver(sys.argv[1]) as saver:
    long.checkpointer = short.checkpointer = saver
    long.invoke(0, thread_id="long")
"""


class Client:
    """Asks the server as a page does.

    Args:
        address: As the command has printed it.
    """

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._place = str(parts.hostname), int(parts.port or 0)
        with self._answer(f"/?{parts.query}") as answer:
            self._cookie = str(answer.headers["set-cookie"]).partition(";")[0]
        self.counts: Counter[str] = Counter()

    @contextmanager
    def _answer(self, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(*self._place, timeout=120)
        try:
            connection.request("GET", path, headers=headers)
            yield connection.getresponse()
        finally:
            connection.close()

    def ask(self, what: str, **query: Any) -> Any:
        """Return what the server answers.

        Raises:
            AssertionError: That was no answer.
        """
        asked = "&".join(f"{key}={quote(str(value))}" for key, value in query.items())
        with self._answer(f"/api/{what}?{asked}", cookie=self._cookie) as answer:
            body = answer.read()
        assert answer.status == http.HTTPStatus.OK, body
        self.counts[what] += 1
        return json.loads(body)

    def follow(self, thread: str, over: threading.Event) -> None:
        """Read the news of a run, and count it; as a tab that is opened again and
        again.
        """
        while not over.is_set():
            path = f"/api/news?thread={thread}"
            with self._answer(path, cookie=self._cookie) as answer, suppress(OSError):
                for _ in range(100):
                    line = answer.readline()
                    if over.is_set() or not line:
                        break
                    self.counts["news"] += line.startswith(b"data:")

    def refresh(self, thread: str, mark: int) -> int:
        """Ask for what changed, and now and then for one thing; return the new mark."""
        self.ask("runs")
        self.ask("run", thread=thread)
        changes = self.ask("calls", thread=thread, since=mark)
        if changes["rows"] and self.counts["calls"] % _OPENED == 0:
            call = changes["rows"][-1][changes["columns"].index("id")]
            self.ask("call", thread=thread, call=call)
            self.ask("logs", thread=thread, call=call)
            newest = self.ask("steps", thread=thread)[0]
            self.ask("step", thread=thread, checkpoint=newest["id"])
        return int(changes["mark"])


def poll(client: Client, over: threading.Event) -> None:
    """Refresh two runs until it is over."""
    marks = {"long": 0, "short": 0}
    while not over.wait(0.05):
        for thread in marks:
            marks[thread] = client.refresh(thread, marks[thread])


@contextmanager
def started(*words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start Python with *words*, and kill it in the end."""
    with subprocess.Popen([sys.executable, *words], text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def soak_page(folder: Path, *, seconds: float) -> bool:
    """Watch for so many seconds, print the memory, and return whether it has grown by
    little.
    """
    store, over = str(folder / "store"), threading.Event()
    quiet = {"stdout": subprocess.DEVNULL}
    served = "-m", "flowpregel.cli", "ui", store
    with started("-c", RUN, store, **quiet):
        while not (folder / "store" / "leases").is_dir():
            time.sleep(0.05)
        with started(*served, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            client = Client(server.stdout.readline().strip())
            while {"long", "short"} > {
                row["thread_id"] for row in client.ask("runs")["runs"]
            }:
                time.sleep(0.05)
            with ThreadPoolExecutor(STREAMS + 1) as pool:
                asking = [
                    pool.submit(client.follow, "long", over) for _ in range(STREAMS)
                ]
                asking.append(pool.submit(poll, client, over))
                sizes = [*_sizes(server.pid, client, seconds)]
                over.set()
    growth = max(sizes) - sizes[0]
    print(f"grown by {growth:.1f} MB at most after the warm-up; {dict(client.counts)}")
    failed = [error for each in asking if (error := each.exception()) is not None]
    for error in failed:
        print(f"! {type(error).__name__}: {error}")
    return not failed and growth <= MOST_GROWTH


def _sizes(pid: int, client: Client, seconds: float) -> Iterator[float]:
    """Yield the megabytes of a process from the end of the warm-up on, printed."""
    pause = seconds / SAMPLES
    for number in range(1, SAMPLES + 1):
        time.sleep(pause)
        size = memory_sizes(pid)["RssAnon:"] / 1e6
        polls = sum(client.counts.values())
        print(
            f"{number * pause / 60:6.1f} min {size:8.1f} MB {polls:>8,} answers",
            flush=True,
        )
        if number >= WARM_UP * SAMPLES:
            yield size


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flowpregel-soak-") as place:
        sys.exit(not soak_page(Path(place), seconds=60 * asked.minutes))
