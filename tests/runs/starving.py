"""A program that invokes a flow while the system gives it few OS threads, and then again.

Prints for each try: how the run ended, and how it ended when it was resumed with as many threads
as it wants. Linux only. Root is not held to the limit, so root becomes another user.
"""

from __future__ import annotations

# What is imported late elsewhere: another user may not be able to read it.
import asyncio
import concurrent.futures.thread
import os
import resource
import sys
from pathlib import Path

import flowpregel.executors.coroutines
import flowpregel.executors.threads
from flowpregel import LMDBSaver, entrypoint, task

NOBODY = 65534


@task
def double(number: int) -> int:
    """Return twice *number*."""
    return 2 * number


def flow(count: int) -> int:
    """Make some calls at once."""
    return sum(future.result() for future in double.map(range(count)))


def threads_now() -> int:
    """Return how many OS threads this user has."""
    found = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text("utf-8")
        except OSError:
            continue
        if f"Uid:\t{os.getuid()}\t" in text:
            found += int(text.partition("Threads:")[2].split()[0])
    return found


def main(folder: str, executor: str, durability: str) -> None:
    """Try with no more OS threads than there are, then with one more, and so on."""
    assert all((asyncio, concurrent.futures.thread))
    assert flowpregel.executors.coroutines
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    saver = LMDBSaver(Path(folder) / "store.lmdb")
    app = entrypoint(checkpointer=saver, executor=executor)(flow)
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    options = {"durability": durability}
    app.invoke(3, thread_id="first", **options)
    for more in range(6):
        resource.setrlimit(resource.RLIMIT_NPROC, (threads_now() + more, most))
        try:
            ended = str(app.invoke(3, thread_id=str(more), **options))
        except Exception as error:  # noqa: BLE001 - which, the test looks at
            ended = repr(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        print(f"{ended}\t{app.invoke(3, thread_id=str(more), **options)}", flush=True)
    saver.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
