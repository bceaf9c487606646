"""A census of the Python source on this machine: parallel, and safe from crashes.

    python examples/census.py
    python examples/census.py ~/projects --page census.html

Every file of the standard library and of the installed packages is parsed and
measured in worker processes. What was measured is kept in ``census.lmdb``. Stop
the program however you like (Ctrl-C, ``kill -9``, a power cut) and run it again:
it goes on where it was, and measures no file twice whose result was kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from census_measure import LOG, File, default_roots, measure_file, python_files
from census_report import Census, as_page, show

from flowpregel.func import entrypoint, task
from flowpregel.pregel import Pregel


@task
def find(roots: list[str]) -> list[tuple[str, str]]:
    """List the files: recorded, so that a run that goes on sees the same ones."""
    return python_files(roots)


@task
def measure(package: str, path: str) -> File:
    """Measure one file."""
    return measure_file(package, path)


def census(store: str, executor: str) -> Pregel:
    """Return the workflow, which keeps what it did in the folder *store*."""

    @entrypoint(checkpointer=store, executor=executor)
    def count(roots: list[str], writer: Any) -> dict[str, object]:
        files = find(roots).result()
        writer(len(files))
        futures = [measure(package, path) for package, path in files]
        found = Census()
        # Oldest first, and let go of each result once it is counted.
        futures.reverse()
        while futures:
            found.add(futures.pop().result())
        return found.summary()

    return count


class Progress:
    """Prints how far the census is, about once a second.

    Args:
        every: Seconds between two lines.
    """

    def __init__(self, every: float = 1.0) -> None:
        self.total = 0
        self.before = 0
        self.done = 0
        self._every = every
        self._started = self._shown = time.monotonic()

    def see(self, mode: str, payload: Any, *, quiet: bool = False) -> None:
        """Take in an event of the stream."""
        if mode == "custom":
            self.total = payload
            self._started = self._shown = time.monotonic()
        elif "measure" in payload:
            if "__metadata__" in payload:
                self.before += 1
            else:
                self.done += 1
        now = time.monotonic()
        if not quiet and self.total and now - self._shown >= self._every:
            self._shown = now
            print(self.line(now), flush=True)

    def line(self, now: float) -> str:
        """Return how far it is."""
        seconds = max(now - self._started, 1e-6)
        rate = self.done / seconds
        kept = self.before + self.done
        waiting = self.total - kept
        left = waiting / rate if rate else float("inf") if waiting else 0.0
        share = 100 * kept // max(self.total, 1)
        known = f", {self.before:,} known from before" if self.before else ""
        return (
            f"{kept:>7,} of {self.total:,} files  {share:>3} %  {rate:6.0f} files/s  "
            f"{left:5.0f} s left{known}"
        )


def run(flow: Pregel, roots: list[str], thread_id: str) -> dict[str, Any]:
    """Run the census, or go on with it, and return what it found."""
    progress, found = Progress(), {}
    # In a terminal the library's live view; elsewhere a line a second.
    live = sys.stderr.isatty()
    asked: dict[str, Any] = {"stream_mode": ["custom", "updates"], "resume": "auto"}
    for mode, payload in flow.stream(
        roots, thread_id=thread_id, progress=live, **asked
    ):
        progress.see(mode, payload, quiet=live)
        if mode == "updates" and flow.name in payload:
            found = payload[flow.name]
    print(progress.line(time.monotonic()), flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the program, and return its exit status."""
    parser = argparse.ArgumentParser(description="A census of Python source.")
    parser.add_argument(
        "roots", nargs="*", help="folders (default: all that Python can import)"
    )
    parser.add_argument(
        "--store", default="census.lmdb", help="folder to keep the run in"
    )
    parser.add_argument("--page", default="census.html", help="HTML page to write")
    parser.add_argument(
        "--thread-id", default="census", help="name of the run's thread"
    )
    parser.add_argument(
        "--executor", default="processes", help="processes, threads or inline"
    )
    parser.add_argument("--log", help="file to which each measurement adds lines")
    asked = parser.parse_args(arguments)
    if missing := [root for root in asked.roots if not Path(root).is_dir()]:
        parser.error(f"no such folder: {', '.join(missing)}")
    if asked.log:
        os.environ[LOG] = str(Path(asked.log).resolve())
    roots = [str(Path(root).resolve()) for root in asked.roots] or default_roots()
    started = time.monotonic()
    try:
        found = run(census(asked.store, asked.executor), roots, asked.thread_id)
    except KeyboardInterrupt:
        print(
            f"stopped; what is measured is kept in {asked.store}: run it again to go on"
        )
        return 130
    print()
    show(found)
    print()
    Path(asked.page).write_text(
        as_page(found), encoding="utf-8", errors="backslashreplace"
    )
    print(f"{time.monotonic() - started:.1f} s; the page is {asked.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
