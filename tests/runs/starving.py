"""A program that invokes a flow while the system gives it few OS threads, and then again.

Prints for each try: how the run ended, and how it ended when it was resumed with as many threads
as it wants. Linux only. Root is not held to the limit, so root becomes another user.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

from flowpregel import LMDBSaver, entrypoint, task

NOBODY = 65534


@task
def double(number: int) -> int:
    """Return twice *number*."""
    return 2 * number


def flow(count: int) -> int:
    """Make some calls at once."""
    return sum(future.result() for future in double.map(range(count)))


def app_of(saver: LMDBSaver, executor: str) -> Any:
    """Return the flow, kept by *saver*."""
    return entrypoint(checkpointer=saver, executor=executor)(flow)


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
    options = {"durability": durability}
    with tempfile.TemporaryDirectory() as first, LMDBSaver(Path(first) / "store.lmdb") as saver:
        # All is imported now: another user may not be able to read it.
        app_of(saver, executor).invoke(3, thread_id="first", **options)
    if os.getuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    saver = LMDBSaver(Path(folder) / "store.lmdb")
    app = app_of(saver, executor)
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
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
